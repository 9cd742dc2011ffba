"""Runs rollouts: a queue, so many at once, new attempts after our own failures, and a journal of every state.

The recorder is a child that may die: its rollouts end as `error`, it is started again a few times, and their next
attempts go on. A policy that died ends what is left at once. Whatever ends the orchestrator, no process of a rollout
survives it and the run gets its `run.end`.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import openforge
from cluster.attempt import Attempt, Result, RolloutSpec, class_of
from cluster.install import Installed, install
from cluster.queue import FairQueue
from cluster.recorder import Recorder
from cluster.rollout import Rollout as Rollout  # what `submit` and `run_all` hand out
from cluster.rollout import end_of_run, journal_columns, keep_trace
from cluster.roster import ConflictError, Roster
from cluster.run_index import RunIndex
from cluster.run_lock import RunLock
from cluster.runtimes.base import Runtime
from cluster.shards import Shards
from cluster.start_gate import StartGate
from cluster.states import RETRIED, UNDER_WAY, AttemptError, ErrorClass, State, check_move, is_terminal
from cluster.training import Trainer, Training
from openforge.config.models import Config
from openforge.config.render import public
from openforge.errors import InfraError, UsageError
from openforge.ids import RolloutId, RunId, new_recorder_id
from openforge.journal.records import JournalError
from openforge.journal.writer import JournalWriter

_BACKOFF_S = 1.0
_BACKOFF_MAX_S = 20.0
_DETAIL_CHARS = 2000

OnEvent = Callable[[Rollout], None]


class Orchestrator:
    """Use as `async with`; then `run_all`, or `submit` and wait for `finished`.

    `new_recorder` makes the recorder of a shard, and each that follows one that died. `on_event` is called at every
    change of state.
    """

    def __init__(
        self,
        config: Config,
        run_id: RunId,
        run_dir: Path,
        runtime: Runtime,
        new_recorder: Callable[[int], Recorder],
        *,
        policy_died: asyncio.Event | None = None,
        policy: Mapping[str, Any] | None = None,
        on_event: OnEvent = lambda rollout: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.run_id, self.run_dir, self.runtime = config, run_id, run_dir, runtime
        self.roster = Roster(run_id, config.run.seed)
        self.index = RunIndex(run_dir)
        self.policies: dict[str, dict[str, Any]] = {"default": dict(policy or {})}
        self.policy_died = policy_died or asyncio.Event()
        self.cancelled = False  # somebody asked for the end of the whole run
        self._on_event, self._say = on_event, say
        self._queue: FairQueue[Rollout] = FairQueue(config.run.harness_concurrency)
        self._starts = StartGate(config.run.concurrency)
        self._running: dict[RolloutId, asyncio.Task[None]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._installed: dict[str, Installed] = {}
        self._install_lock = asyncio.Lock()
        self._recorders = Shards(config.recorder.shards, new_recorder, runtime, say)
        self._lock, self._draining = RunLock(run_dir), False
        self._going = asyncio.Event()  # cleared: no attempt begins
        self._going.set()
        self.journal: JournalWriter
        self.training: Training

    async def __aenter__(self) -> Self:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            await asyncio.to_thread(self.index.catch_up)
            self._begin()
        except BaseException:
            self._lock.drop()
            raise
        try:
            await self.runtime.start()
            await self._recorders.start()
        except BaseException as error:
            await self._close(error)
            raise
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._at_once())]
        return self

    def _at_once(self) -> int:
        asked, room = self.config.run.concurrency, self.runtime.room
        if room is None or room >= asked:
            return asked
        self._say(f"{room} rollouts at once, not {asked}: target.per_node = {self.config.target.per_node}")
        return room

    def _begin(self) -> None:
        """The run's start in the journal, above what earlier orchestrators left there."""
        self.roster.restore(self.index.rollouts)
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
            incarnation=self.index.starts,
        )
        self.training = Training(self.journal, self.index.trainer)

    @property
    def rollouts(self) -> dict[RolloutId, Rollout]:
        """Those that this orchestrator has been asked for."""
        return self.roster.live

    @property
    def recorder(self) -> Recorder | None:
        """That of the first shard."""
        return self._recorders.live[0].recorder

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def submit(self, spec: RolloutSpec) -> Rollout:
        """Queue a rollout. The same task, harness and sample again is the same rollout; see roster.py."""
        if self._draining:
            raise ConflictError(f"run {self.run_id} is being drained and takes no rollouts", hint="start a new run")
        rollout, queued = self.roster.admit(spec)
        if queued:
            self._enter(rollout, State.QUEUED)
            await self._queue.put(spec.harness.name, rollout)
        return rollout

    async def run_all(self, specs: Sequence[RolloutSpec]) -> list[Rollout]:
        """Run every spec to its end. Raises what stopped the orchestrator itself, such as a journal that broke."""
        rollouts = [await self.submit(spec) for spec in specs]

        async def all_finished() -> None:
            for rollout in rollouts:
                await rollout.finished.wait()

        finished, watching = asyncio.create_task(all_finished()), asyncio.create_task(self.watch())
        try:
            await asyncio.wait({finished, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            finished.cancel()
            watching.cancel()
        return rollouts

    async def watch(self) -> None:
        """Wait for what stops the orchestrator itself, such as a journal that broke, and raise it."""
        await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
        for worker in self._workers:
            if worker.done():
                worker.result()

    async def cancel(self, name: RolloutId) -> Rollout:
        """End a rollout; returns when nothing of it runs any more. One that has ended already stays as it is."""
        rollout = self.rollouts.get(name)
        if rollout is None:
            raise UsageError(f"no rollout {name!r} in this run", hint="`openforge rollouts` lists them")
        task = self._running.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if not rollout.finished.is_set():  # queued, or its task had not begun
            self._finish(rollout, State.CANCELLED, "cancelled while queued")
        return rollout

    @property
    def state(self) -> str:
        """running, or paused: no rollout begins for now."""
        return "running" if self._going.is_set() else "paused"

    def pause(self, on: bool) -> list[Rollout]:
        """Begin no attempt until this is called again with False. What is under way goes on to its end; returns it."""
        if on is self._going.is_set():
            self.journal.append("run.pause", paused=on)
            (self._going.clear if on else self._going.set)()
        return [rollout for rollout in self.rollouts.values() if rollout.state in UNDER_WAY]

    async def drain(self) -> list[Rollout]:
        """Take no more rollouts and cancel what is queued, what waits for a new attempt included; returns what runs
        on to its end."""
        self._draining = True
        unfinished = [rollout for rollout in self.rollouts.values() if not rollout.finished.is_set()]
        for rollout in unfinished:
            if rollout.state in (State.QUEUED, State.ERROR):
                await self.cancel(rollout.id)
        return [rollout for rollout in unfinished if not rollout.finished.is_set()]

    async def cancel_all(self) -> list[Rollout]:
        """End every unfinished rollout, queued or running; returns them."""
        ended = [rollout for rollout in self.rollouts.values() if not rollout.finished.is_set()]
        await asyncio.gather(*(self.cancel(rollout.id) for rollout in ended))
        return ended

    async def trainer_started(self, from_step: int, pid: int) -> Trainer:
        """A trainer has started, or started again: its policy is not dead any more, and not yet where it was."""
        self.policy_died.clear()
        await self._recorders.forget_policy()
        return self.training.started(from_step, pid)

    async def set_policy(self, name: str, addresses: Sequence[str], token: str, weight_version: str) -> None:
        """Where a policy answers from now on; the recorder asks `default`. RecorderError when it refuses."""
        self.policies[name] = {"addresses": list(addresses), "weight_version": weight_version}
        if name == "default":
            await self._recorders.set_policy(addresses, token, weight_version)

    async def drop_policy(self, name: str) -> None:
        """A policy has died. If it is `default`, its rollouts end as `error`, and so do all until a trainer starts."""
        self.policies.pop(name, None)
        if name == "default":
            self.policy_died.set()
            await self._recorders.forget_policy()

    async def status(self) -> dict[str, Any]:
        """What goes on now: rollouts by state, model calls in flight, the recorders."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "rollouts": dict(Counter(str(rollout.state) for rollout in self.rollouts.values())),
            "calls": await self._recorders.calls(),
            "recorders": self._recorders.states(),
            "isolation": self.runtime.enforced.isolation,
            "policies": self.policies,
            "trainer": asdict(self.training.trainer) if self.training.trainer is not None else None,
        }

    async def _work(self) -> None:
        while True:
            rollout = await self._queue.get()
            if not rollout.finished.is_set():  # else it was cancelled while it was queued
                await self._bring_to_its_end(rollout)
            await self._queue.done(rollout.spec.harness.name)

    async def _bring_to_its_end(self, rollout: Rollout) -> None:
        task = self._running[rollout.id] = asyncio.create_task(self._live(rollout))
        try:
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        finally:
            if not task.done():  # the worker is being ended: so is what it runs
                task.cancel()
                await asyncio.wait([task])
            if self._running.get(rollout.id) is task:  # and not that of a rollout begun again meanwhile
                del self._running[rollout.id]

    async def _live(self, rollout: Rollout) -> None:
        """Attempts until one counts, or there are no more."""
        try:
            while True:
                await self._going.wait()
                await self._attempt(rollout)
                if rollout.last:
                    rollout.finished.set()
                    return
                # Full jitter: what failed together must not come back together.
                tried = rollout.attempt - rollout.first_attempt
                await asyncio.sleep(random.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_S * 2**tried)))
                rollout.attempt += 1
                rollout.state, rollout.result = State.QUEUED, Result()
                self._enter(rollout, State.QUEUED)
        except asyncio.CancelledError:
            self._finish(rollout, State.CANCELLED, "cancelled")
            raise

    async def _attempt(self, rollout: Rollout) -> None:
        """One attempt, to its terminal state."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        result = rollout.result
        try:
            if self.policy_died.is_set():
                raise AttemptError(ErrorClass.POLICY, "the policy server has died", hint="openforge logs --policy")
            installed = await self._install(rollout.spec)
            shard, recorder = await self._recorders.next()
            attempt = Attempt(
                config=self.config,
                runtime=self.runtime,
                recorder=recorder,
                shard=shard,
                installed=installed,
                spec=rollout.spec,
                rollout_id=rollout.id,
                number=rollout.attempt,
                log=self._log(rollout),
                on_state=lambda state, detail: self._enter(rollout, state, detail),
                policy_died=self.policy_died,
                starts=self._starts,
            )
            await attempt.run(result)
        except JournalError:
            raise  # the run cannot go on
        except Exception as error:
            result.error_class = class_of(error)
            if result.error_class is ErrorClass.BUG:
                keep_trace(log := self._log(rollout), error)
                self._say(f"{rollout.id}: a bug of OpenForge ended this attempt ({type(error).__name__}); see {log}")
            rollout.duration_s = loop.time() - started_s
            tried = rollout.attempt - rollout.first_attempt
            no_more = tried >= self.config.run.retries or self.policy_died.is_set()
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

    async def _install(self, spec: RolloutSpec) -> Installed:
        name = spec.harness.name
        async with self._install_lock:
            if name not in self._installed:
                try:
                    self._installed[name] = await asyncio.to_thread(install, spec.harness, self._say)
                except InfraError as error:
                    raise AttemptError(ErrorClass.SANDBOX, error.summary, hint=error.hint) from error
        return self._installed[name]

    def _enter(self, rollout: Rollout, state: State, detail: str = "") -> None:
        """Change the state, journal it, tell whoever watches. A move that is not allowed raises and changes nothing."""
        if state is not State.QUEUED:
            check_move(rollout.state, state)
        known = journal_columns(rollout, state, self.runtime.name)
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
        try:
            await self._end(error)
        finally:
            self._lock.drop()

    async def _end(self, error: BaseException | None) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for rollout in self.rollouts.values():
            if not rollout.finished.is_set():
                self._finish(rollout, State.CANCELLED, "the run ended before it started")
        await self._recorders.stop()
        await self.runtime.close()
        state, reason = end_of_run(self.rollouts.values(), error, cancelled=self.cancelled)
        try:
            self.journal.append("run.end", state=state, reason=reason)
        except JournalError:
            self._say(f"the journal could not take the end of the run: {self.journal.broken}")
        self.journal.close()
