"""One attempt of one rollout, from an empty folder to a grade; what follows a failure is the orchestrator's business.

Order: start files, register with the recorder, run the harness, everything in the sandbox dead, seal, grade. Sealing
comes before grading so that no late call lands on a trace that is being scored.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.grading import base_env
from cluster.install import Installed
from cluster.recorder import Recorder, RecorderError, SealSummary
from cluster.runtimes.base import Exit, Grade, Order, Runtime, Sandbox
from cluster.start_gate import StartGate
from cluster.states import AttemptError, ErrorClass, State
from openforge.config.models import Config
from openforge.errors import InfraError
from openforge.harness import HarnessManifest
from openforge.journal.records import JournalError
from openforge.task import Task

_DEADLINE_SLACK_S = 30.0


@dataclass(frozen=True)
class RolloutSpec:
    """What to run. The start files depend on `task` and `seed` only.

    The rest says what it is for and changes nothing of it: `purpose` is train or eval, `step` that of the training,
    `group` what it is compared within, `key` the asker's own name for it.
    """

    task: Task
    harness: HarnessManifest
    sample: int
    seed: int
    purpose: str | None = None
    step: int | None = None
    group: str | None = None
    key: str | None = None


@dataclass
class Result:
    """What an attempt came to; filled in as it goes, so that a failure keeps what is known."""

    exit: Exit | None = None
    sealed: SealSummary | None = None
    grade: Grade | None = None
    error_class: ErrorClass | None = None
    detail: str = ""


@dataclass(frozen=True)
class Attempt:
    """Everything one attempt needs. `on_state` is told each state it enters, with a detail."""

    config: Config
    runtime: Runtime
    recorder: Recorder
    shard: int
    installed: Installed
    spec: RolloutSpec
    rollout_id: str
    number: int
    log: Path
    on_state: Callable[[State, str], None]
    policy_died: asyncio.Event
    starts: StartGate
    egress_allow: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: "t" + secrets.token_hex(20))

    async def run(self, result: Result) -> None:
        """Fill in `result` up to its grade; AttemptError when the attempt is void. Cancelled, it leaves nothing."""
        try:
            async with AsyncExitStack() as stack:
                async with self.starts.turn():
                    self.on_state(State.STARTING, "")
                    sandbox = await stack.enter_async_context(self.runtime.sandbox(self._order()))
                await self._in(sandbox, result)
        except (InfraError, OSError) as error:
            if isinstance(error, RecorderError | JournalError):
                raise
            raise AttemptError(ErrorClass.SANDBOX, str(error), hint=getattr(error, "hint", "")) from error

    def _order(self) -> Order:
        task, run = self.spec.task, self.config.run
        return Order(
            rollout_id=self.rollout_id,
            attempt=self.number,
            task=task,
            seed=self.spec.seed,
            harness=self.spec.harness,
            installed=self.installed,
            settings=self.config.sandbox,
            wall_s=min(run.time_limit_s, task.agent_timeout_s or run.time_limit_s),
            log=self.log,
            shard=self.shard,
        )

    async def _in(self, sandbox: Sandbox, result: Result) -> None:
        """From the registration to the grade. Whatever happens, the recorder keeps no rollout that is not sealed."""
        sealed = False
        try:
            await self._register(self._order().wall_s)
            walls = self.runtime.enforced.isolation
            self.on_state(State.RUNNING, f"isolation: {walls}" if walls == "advisory" else "")
            result.exit = await self._guarded(self._run_harness(sandbox))
            if not result.exit.started:
                raise AttemptError(ErrorClass.SANDBOX, result.exit.detail, hint=f"see {self.log}")
            result.sealed = await self._seal()
            sealed = True
            result.error_class, result.detail = judge(result.exit, result.sealed, self.spec.harness, f"see {self.log}")
            self.on_state(State.GRADING, "")
            result.grade = await self._guarded(sandbox.grade())
            if result.grade.reward is None:
                raise AttemptError(ErrorClass.GRADER, result.grade.problem, hint=f"see {self.log}")
        finally:
            if not sealed and not self.recorder.died.is_set():
                with suppress(RecorderError):
                    await asyncio.shield(self.recorder.drop(self.rollout_id))

    async def _register(self, wall_s: float) -> None:
        run = self.config.run
        body: dict[str, Any] = {
            "attempt": self.number,
            "token": self.token,
            "max_calls": run.max_calls,
            "max_tokens": run.max_tokens,
            "deadline_s": wall_s + _DEADLINE_SLACK_S,
            "egress_allow": sorted(
                {*self.config.sandbox.egress_allow, *self.spec.task.egress_allow, *self.egress_allow}
            ),
            "labels": {"task": self.spec.task.ref, "harness": self.spec.harness.name},
        }
        try:
            await self.recorder.register(self.rollout_id, body)
        except RecorderError as error:
            raise AttemptError(ErrorClass.RECORDER, error.summary, hint=error.hint) from error

    async def _seal(self) -> SealSummary:
        try:
            return await self.recorder.seal(self.rollout_id, self.number)
        except RecorderError as error:
            raise AttemptError(ErrorClass.RECORDER, error.summary, hint=error.hint) from error

    async def _guarded[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, but end it at once when the recorder or the policy dies."""
        main = asyncio.ensure_future(work)
        watched = {
            asyncio.ensure_future(self.recorder.died.wait()): ErrorClass.RECORDER,
            asyncio.ensure_future(self.policy_died.wait()): ErrorClass.POLICY,
        }
        try:
            await asyncio.wait({main, *watched}, return_when=asyncio.FIRST_COMPLETED)
            if main.done():
                return main.result()
            dead = next(error_class for future, error_class in watched.items() if future.done())
            raise AttemptError(dead, f"the {dead} died while the rollout ran")
        finally:
            for future in (main, *watched):
                future.cancel()
            await asyncio.gather(main, *watched, return_exceptions=True)

    async def _run_harness(self, sandbox: Sandbox) -> Exit:
        harness, layout = self.spec.harness, sandbox.layout
        proxy_url = f"http://{self.token}:x@{layout.proxy}"
        base_url = layout.site if harness.spec.identity.via == "key" else f"{layout.site}/r/{self.token}"
        launch = harness.launch(
            {
                "instruction": self.spec.task.instruction,
                "model": self.config.policy.served_name,
                "base_url": f"{base_url}/v1",
                "api_key": self.token,
                "home": layout.home,
                "work": layout.work,
                "harness_dir": layout.harness,
                "bin": f"{layout.harness}/{self.installed.bin}",
                "proxy_url": proxy_url,
            }
        )
        proxies = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy_url)
        direct = (
            ""
            if harness.spec.identity.via == "proxy"
            else ",".join(dict.fromkeys(("127.0.0.1", "localhost", layout.host)))
        )
        env = {
            **base_env(layout.path, layout.home, layout.temp),
            **proxies,
            "NO_PROXY": direct,
            "no_proxy": direct,
            **dict.fromkeys(harness.spec.ca.env, layout.ca),
            **launch.env,
        }
        assert self.recorder.ready is not None
        return await sandbox.run(launch, env, self.recorder.ready.ca_path)


def judge(ended: Exit, sealed: SealSummary, harness: HarnessManifest, hint: str = "") -> tuple[ErrorClass | None, str]:
    """Whose doing the end was, once the rollout is sealed. AttemptError when it was not the agent's."""
    limited = sealed.refused_calls + sealed.limited
    if sealed.calls == 0 and not sealed.limited:
        if sealed.aborted:
            raise AttemptError(ErrorClass.POLICY, f"no model call was answered, {sealed.aborted} broke off")
        meaning = harness.exit_meaning(ended.code) if ended.code is not None else ended.detail
        raise AttemptError(ErrorClass.NO_MODEL_CALLS, f"the harness made no model call ({meaning})", hint=hint)
    by_reason = {
        "time": ErrorClass.TIMEOUT_AGENT,
        "memory": ErrorClass.MEMORY,
        "disk": ErrorClass.DISK,
        "signal": ErrorClass.AGENT_KILLED,
    }
    if ended.reason in by_reason:
        return by_reason[ended.reason], ended.detail
    if limited:
        return ErrorClass.LIMIT, f"{limited} calls over the rollout's limits were refused"
    if ended.code is not None and harness.failed(ended.code):
        if sealed.aborted:  # a harness that gives up on a model API that breaks off has not failed at its task
            raise AttemptError(ErrorClass.POLICY, f"{sealed.aborted} model calls broke off, then the harness gave up")
        return ErrorClass.HARNESS_EXIT, harness.exit_meaning(ended.code)
    return None, ""


def class_of(error: Exception) -> ErrorClass:
    """Why an attempt that raised this ended."""
    if isinstance(error, AttemptError):
        return error.error_class
    if isinstance(error, RecorderError):
        return ErrorClass.RECORDER
    return ErrorClass.SANDBOX if isinstance(error, InfraError | OSError) else ErrorClass.BUG
