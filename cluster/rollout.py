"""One rollout as the orchestrator knows it, and as it is told to whoever asks. Data only.

An `Account` is the same whether the rollout lives in memory or an earlier orchestrator left it in the journal.
"""

import asyncio
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.attempt import Result, RolloutSpec
from cluster.states import State, is_terminal
from openforge.ids import RolloutId

LOST = "lost"  # unfinished when its orchestrator died


@dataclass(frozen=True)
class Account:
    """What is known of a rollout. `finished`: nothing more comes of it unless it is asked for again."""

    rollout_id: RolloutId
    state: str
    finished: bool
    attempt: int
    task: str
    harness: str
    sample: int
    seed: int
    purpose: str | None = None
    step: int | None = None
    group: str | None = None
    key: str | None = None
    reward: float | None = None
    error_class: str | None = None
    detail: str = ""
    exit_code: int | None = None
    duration_s: float = 0.0
    calls: int | None = None
    completion_tokens: int | None = None
    invalid_calls: int | None = None

    @property
    def void(self) -> bool:
        """It ended without a grade: asked for again, it gets a new attempt."""
        return self.finished and self.state not in (State.DONE, State.FAILED)


@dataclass
class Rollout:
    """What is known of one rollout now. `last`: no attempt follows this one; `finished`: it is over.

    `before`: what an earlier orchestrator of the run had come to, when that is its end.
    """

    id: RolloutId
    spec: RolloutSpec
    state: State = State.QUEUED
    attempt: int = 0
    result: Result = field(default_factory=Result)
    duration_s: float = 0.0
    last: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    first_attempt: int = 0
    before: Account | None = None

    @property
    def reward(self) -> float | None:
        if self.before is not None:
            return self.before.reward
        graded = self.result.grade
        return graded.reward if graded is not None and self.state in (State.DONE, State.FAILED) else None


def ended_before(account: Account, spec: RolloutSpec) -> Rollout:
    """A rollout that an earlier orchestrator of this run brought to its end."""
    rollout = Rollout(account.rollout_id, spec, State(account.state), account.attempt, last=True, before=account)
    rollout.result.detail, rollout.duration_s = account.detail, account.duration_s
    rollout.finished.set()
    return rollout


def account_of(rollout: Rollout) -> Account:
    """The rollout as it is now."""
    if rollout.before is not None:
        return rollout.before
    spec, result, sealed = rollout.spec, rollout.result, rollout.result.sealed
    return Account(
        rollout_id=rollout.id,
        state=str(rollout.state),
        finished=rollout.finished.is_set(),
        attempt=rollout.attempt,
        task=spec.task.ref,
        harness=spec.harness.name,
        sample=spec.sample,
        seed=spec.seed,
        purpose=spec.purpose,
        step=spec.step,
        group=spec.group,
        key=spec.key,
        reward=rollout.reward,
        error_class=result.error_class,
        detail=result.detail,
        exit_code=result.exit.code if result.exit is not None else None,
        duration_s=rollout.duration_s,
        calls=sealed.calls if sealed is not None else None,
        completion_tokens=sealed.completion_tokens if sealed is not None else None,
        invalid_calls=sealed.invalid_calls if sealed is not None else None,
    )


def journal_columns(rollout: Rollout, state: State, runtime: str) -> dict[str, Any]:
    """What a rollout.state record says besides the state: what was asked for when it is queued, what came of it when it
    has ended."""
    spec, result = rollout.spec, rollout.result
    if state is State.QUEUED:
        return {
            "task": spec.task.ref,
            "harness": spec.harness.name,
            "harness_version": spec.harness.version,
            "harness_hash": spec.harness.content_hash(),
            "sample": spec.sample,
            "seed": spec.seed,
            "runtime": runtime,
            "purpose": spec.purpose,
            "step": spec.step,
            "group_id": spec.group,
            "key": spec.key,
        }
    if not is_terminal(state):
        return {}
    return {
        "error_class": result.error_class,
        "exit_code": result.exit.code if result.exit is not None else None,
        "duration_s": rollout.duration_s,
        "invalid_calls": result.sealed.invalid_calls if result.sealed is not None else None,
    }


def end_of_run(
    rollouts: Collection[Rollout], error: BaseException | None, *, cancelled: bool = False
) -> tuple[str, str | None]:
    """The state that a run ends in, and why when that is not as it should be. `error`: what ended its orchestrator;
    `cancelled`: somebody asked for the end of the whole run."""
    if error is None and cancelled:
        return "cancelled", "its end was asked for"
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "cancelled", "interrupted"
    if error is not None:
        return "error", str(error) or type(error).__name__
    errors = sum(rollout.state is State.ERROR for rollout in rollouts)
    if errors:
        told = f"{errors} of {len(rollouts)} rollouts ended as error"
        return ("error" if errors == len(rollouts) else "done"), told
    return "done", None


def keep_trace(log: Path, error: Exception) -> None:
    """Put a fault of this program beside what the attempt printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", errors="replace") as file:
        file.write("\n" + "".join(traceback.format_exception(error)))
