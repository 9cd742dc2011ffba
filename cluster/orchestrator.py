"""Runs rollouts: a queue, so many at once, new attempts after our own failures, and a journal of every state.

The recorder is a child that may die: its rollouts end as `error`, it is started again a few times, and their next
attempts go on. A policy that died ends what is left at once. Whatever ends the orchestrator, no process of a rollout
survives it and the run gets its `run.end`.
"""

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import openforge
from cluster.attempt import Attempt, AttemptError, Result, RolloutSpec
from cluster.install import Installed, install
from cluster.queue import FairQueue
from cluster.recorder_process import RecorderError, RecorderProcess
from cluster.runtimes.base import Runtime
from cluster.states import RETRIED, ErrorClass, State, check_move, is_terminal
from openforge.config.models import Config
from openforge.config.render import public
from openforge.errors import InfraError, UsageError
from openforge.ids import RolloutId, RunId, new_recorder_id, rollout_id
from openforge.journal.records import JournalError
from openforge.journal.writer import JournalWriter

_RECORDER_STARTS = 4
_BACKOFF_S = 1.0
_BACKOFF_MAX_S = 20.0
_DETAIL_CHARS = 2000


@dataclass
class Rollout:
    """What is known of one rollout now. `last`: no attempt follows this one; `finished`: it is over."""

    id: RolloutId
    spec: RolloutSpec
    state: State = State.QUEUED
    attempt: int = 0
    result: Result = field(default_factory=Result)
    duration_s: float = 0.0
    last: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def reward(self) -> float | None:
        graded = self.result.grade
        return graded.reward if graded is not None and self.state in (State.DONE, State.FAILED) else None


OnEvent = Callable[[Rollout], None]


class Orchestrator:
    """Use as `async with`; then `run_all`, or `submit` and wait for `finished`.

    `recorder_settings` is what the recorder is told but for its secret. `on_event` is called at every change of state.
    """

    def __init__(
        self,
        config: Config,
        run_id: RunId,
        run_dir: Path,
        runtime: Runtime,
        recorder_settings: Mapping[str, Any],
        *,
        policy_died: asyncio.Event | None = None,
        policy: Mapping[str, Any] | None = None,
        on_event: OnEvent = lambda rollout: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.run_id, self.run_dir, self.runtime = config, run_id, run_dir, runtime
        self.rollouts: dict[RolloutId, Rollout] = {}
        self.policies: dict[str, dict[str, Any]] = {"default": dict(policy or {})}
        self.policy_died = policy_died or asyncio.Event()
        self._recorder_settings = recorder_settings
        self._on_event, self._say = on_event, say
        self._queue: FairQueue[Rollout] = FairQueue()
        self._running: dict[RolloutId, asyncio.Task[None]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._installed: dict[str, Installed] = {}
        self.recorder: RecorderProcess | None = None
        self._recorder_starts = 0
        self._recorder_lock = asyncio.Lock()
        self._install_lock = asyncio.Lock()
        self.journal: JournalWriter

    async def __aenter__(self) -> Self:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.journal = JournalWriter(self.run_dir, new_recorder_id("orchestrator"), self.run_id)
        run = self.config.run
        self.journal.append(
            "run.start",
            config=public(self.config),
            tasks=list(run.tasks),
            harnesses=list(run.harnesses),
            samples=run.samples,
            policy=self.policies["default"] or {"model": self.config.policy.model},
            version=openforge.__version__,
        )
        try:
            await self.runtime.start()
            await self._live_recorder()
        except BaseException as error:
            await self._close(error)
            raise
        self._workers = [asyncio.create_task(self._work()) for _ in range(run.concurrency)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def submit(self, spec: RolloutSpec) -> Rollout:
        """Queue a rollout. The same task, harness and sample again is the same rollout."""
        name = rollout_id(self.run_id, spec.task.name, spec.harness.name, spec.sample)
        known = self.rollouts.get(name)
        if known is not None:
            return known
        rollout = self.rollouts[name] = Rollout(name, spec)
        self._enter(rollout, State.QUEUED)
        await self._queue.put(spec.harness.name, rollout)
        return rollout

    async def run_all(self, specs: Sequence[RolloutSpec]) -> list[Rollout]:
        """Run every spec to its end. Raises what stopped the orchestrator itself, such as a journal that broke."""
        rollouts = [await self.submit(spec) for spec in specs]

        async def all_finished() -> None:
            for rollout in rollouts:
                await rollout.finished.wait()

        finished = asyncio.create_task(all_finished())
        try:
            await asyncio.wait({finished, *self._workers}, return_when=asyncio.FIRST_COMPLETED)
            for worker in self._workers:
                if worker.done():
                    worker.result()
        finally:
            finished.cancel()
        return rollouts

    async def cancel(self, name: RolloutId) -> Rollout:
        """End a rollout; returns when nothing of it runs any more. One that has ended already stays as it is."""
        rollout = self.rollouts.get(name)
        if rollout is None:
            raise UsageError(f"no rollout {name!r} in this run", hint="`openforge rollouts` lists them")
        task = self._running.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        elif not is_terminal(rollout.state):
            self._finish(rollout, State.CANCELLED, "cancelled while queued")
        return rollout

    async def status(self) -> dict[str, Any]:
        """What goes on now: rollouts by state, model calls in flight, starts of the recorder."""
        calls: list[dict[str, Any]] = []
        if self.recorder is not None:
            with suppress(RecorderError):  # between two recorders there are no calls
                calls = (await self.recorder.status()).get("calls", [])
        return {
            "run_id": self.run_id,
            "rollouts": dict(Counter(str(rollout.state) for rollout in self.rollouts.values())),
            "calls": calls,
            "recorder_starts": self._recorder_starts,
            "isolation": self.runtime.enforced.isolation,
            "policies": self.policies,
        }

    async def _work(self) -> None:
        while True:
            rollout = await self._queue.get()
            if rollout.finished.is_set():
                continue
            task = self._running[rollout.id] = asyncio.create_task(self._live(rollout))
            try:
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()
            finally:
                if not task.done():  # this worker is being ended: so is what it runs
                    task.cancel()
                    await asyncio.wait([task])
                del self._running[rollout.id]

    async def _live(self, rollout: Rollout) -> None:
        """Attempts until one counts, or there are no more."""
        while True:
            try:
                await self._attempt(rollout)
            except asyncio.CancelledError:
                self._finish(rollout, State.CANCELLED, "cancelled")
                raise
            if rollout.last:
                rollout.finished.set()
                return
            # Full jitter: what failed together must not come back together.
            await asyncio.sleep(random.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_S * 2**rollout.attempt)))
            rollout.attempt += 1
            rollout.state, rollout.result = State.QUEUED, Result()
            self._enter(rollout, State.QUEUED)

    async def _attempt(self, rollout: Rollout) -> None:
        """One attempt, to its terminal state."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        result = rollout.result
        try:
            if self.policy_died.is_set():
                raise AttemptError(ErrorClass.POLICY, "the policy server has died", hint="openforge logs --policy")
            installed = await self._install(rollout.spec)
            recorder = await self._live_recorder()
            attempt = Attempt(
                config=self.config,
                runtime=self.runtime,
                recorder=recorder,
                installed=installed,
                spec=rollout.spec,
                rollout_id=rollout.id,
                number=rollout.attempt,
                log=self._log(rollout),
                on_state=lambda state, detail: self._enter(rollout, state, detail),
                policy_died=self.policy_died,
            )
            await attempt.run(result)
        except JournalError:
            raise  # the run cannot go on
        except Exception as error:
            result.error_class = _class_of(error)
            if result.error_class is ErrorClass.BUG:
                self._note_bug(rollout, error)
            rollout.duration_s = loop.time() - started_s
            no_more = rollout.attempt >= self.config.run.retries or self.policy_died.is_set()
            rollout.last = no_more or result.error_class not in RETRIED
            self._enter(rollout, State.ERROR, str(error) or type(error).__name__)
            return
        rollout.duration_s = loop.time() - started_s
        graded = result.grade
        assert graded is not None
        assert graded.reward is not None
        self.journal.append(
            "grade",
            rollout_id=rollout.id,
            attempt=rollout.attempt,
            reward=graded.reward,
            details=graded.details,
            duration_s=graded.duration_s,
        )
        rollout.last = True
        self._enter(rollout, State.DONE if result.error_class is None else State.FAILED, result.detail)

    def _log(self, rollout: Rollout) -> Path:
        return self.run_dir / "logs" / f"{rollout.id}.{rollout.attempt}.log"

    def _note_bug(self, rollout: Rollout, error: Exception) -> None:
        """One attempt met a fault of this program: the others go on, and its traceback is kept beside its output."""
        log = self._log(rollout)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", errors="replace") as file:
            file.write("\n" + "".join(traceback.format_exception(error)))
        self._say(f"{rollout.id}: a bug of OpenForge ended this attempt ({type(error).__name__}); see {log}")

    async def _install(self, spec: RolloutSpec) -> Installed:
        name = spec.harness.name
        async with self._install_lock:
            if name not in self._installed:
                try:
                    self._installed[name] = await asyncio.to_thread(install, spec.harness, self._say)
                except InfraError as error:
                    raise AttemptError(ErrorClass.SANDBOX, error.summary, hint=error.hint) from error
        return self._installed[name]

    async def _live_recorder(self) -> RecorderProcess:
        """The recorder, started again when it has died. RecorderError after too many deaths."""
        async with self._recorder_lock:
            if self.recorder is not None and not self.recorder.died.is_set():
                return self.recorder
            if self._recorder_starts >= _RECORDER_STARTS:
                raise RecorderError(
                    f"the recorder died {self._recorder_starts} times", hint="openforge logs --recorder"
                )
            if self.recorder is not None:
                self._say("the recorder died; starting it again")
                await self.recorder.stop()
            self._recorder_starts += 1
            self.recorder = RecorderProcess(self._recorder_settings, self.run_dir / "logs" / "recorder.log")
            ready = await self.recorder.start()
            self.runtime.reach(ready.proxy_port, ready.site_port)
            return self.recorder

    def _enter(self, rollout: Rollout, state: State, detail: str = "") -> None:
        """Change the state, journal it, tell whoever watches. A move that is not allowed raises and changes nothing."""
        if state is not State.QUEUED:
            check_move(rollout.state, state)
        spec, result = rollout.spec, rollout.result
        known: dict[str, Any] = {}
        if state is State.QUEUED:
            known = {
                "task": spec.task.ref,
                "harness": spec.harness.name,
                "harness_version": spec.harness.version,
                "harness_hash": spec.harness.content_hash(),
                "sample": spec.sample,
                "seed": spec.seed,
                "runtime": self.runtime.name,
            }
        if is_terminal(state):
            known |= {
                "error_class": result.error_class,
                "exit_code": result.exit.code if result.exit is not None else None,
                "duration_s": rollout.duration_s,
            }
        detail = detail[:_DETAIL_CHARS].encode(errors="replace").decode()  # it may hold names that are not text
        self.journal.append(
            "rollout.state", rollout_id=rollout.id, attempt=rollout.attempt, state=state, detail=detail or None, **known
        )
        rollout.state = state
        rollout.result.detail = detail if is_terminal(state) else rollout.result.detail
        self._on_event(rollout)

    def _finish(self, rollout: Rollout, state: State, detail: str) -> None:
        rollout.last = True
        if not is_terminal(rollout.state):
            with suppress(JournalError):  # the journal may be why we end; the state in memory must still be right
                self._enter(rollout, state, detail)
        rollout.finished.set()

    async def _close(self, error: BaseException | None) -> None:
        """Everything dead, then the end of the run in the journal."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for rollout in self.rollouts.values():
            if not rollout.finished.is_set():
                self._finish(rollout, State.CANCELLED, "the run ended before it started")
        if self.recorder is not None:
            await self.recorder.stop()
        await self.runtime.close()
        state, reason = self._end_state(error)
        try:
            self.journal.append("run.end", state=state, reason=reason)
        except JournalError:
            self._say(f"the journal could not take the end of the run: {self.journal.broken}")
        self.journal.close()

    def _end_state(self, error: BaseException | None) -> tuple[str, str | None]:
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            return "cancelled", "interrupted"
        if error is not None:
            return "error", str(error) or type(error).__name__
        states = [rollout.state for rollout in self.rollouts.values()]
        errors = states.count(State.ERROR)
        if errors:
            return ("error" if errors == len(states) else "done"), f"{errors} of {len(states)} rollouts ended as error"
        return "done", None


def _class_of(error: Exception) -> ErrorClass:
    if isinstance(error, AttemptError):
        return error.error_class
    if isinstance(error, RecorderError):
        return ErrorClass.RECORDER
    return ErrorClass.SANDBOX if isinstance(error, InfraError | OSError) else ErrorClass.BUG
