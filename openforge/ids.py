"""Names of runs, rollouts and calls.

A run id sorts by time and is short enough to type (any unique prefix works wherever a person types one, and so does
`latest`). A rollout id says what it is: `<run>.<task>.<harness>.<sample>`. Wall clocks never order records: that is
what `recorder_id` + `seq` are for.
"""

import re
import secrets
import time
from collections.abc import Iterable
from typing import Literal, NamedTuple, NewType

from openforge.errors import UsageError

RunId = NewType("RunId", str)
RolloutId = NewType("RolloutId", str)
CallId = NewType("CallId", str)
RecorderId = NewType("RecorderId", str)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base32: no i, l, o, u
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_RUN = re.compile(rf"r[{_ALPHABET}]{{11}}")
_CALL = re.compile(rf"c[{_ALPHABET}]{{16}}")


class RolloutParts(NamedTuple):
    """What a rollout id says; `sample` counts from 0."""

    run_id: RunId
    task: str
    harness: str
    sample: int


def _base32(value: int, length: int) -> str:
    digits = [_ALPHABET[(value >> (5 * place)) & 31] for place in range(length)]
    return "".join(reversed(digits))


def new_run_id(now_s: float | None = None) -> RunId:
    """`r` + 8 characters of time (quarter seconds, good until 2400) + 3 random ones."""
    quarters = int((time.time() if now_s is None else now_s) * 4)
    return RunId("r" + _base32(quarters, 8) + _base32(secrets.randbits(15), 3))


def new_call_id() -> CallId:
    """Unique, not ordered: order is `recorder_id` + `seq`."""
    return CallId("c" + _base32(secrets.randbits(80), 16))


def new_recorder_id(role: str) -> RecorderId:
    """One per process start, so that no journal file has two writers. `role` is e.g. `recorder` or `orchestrator`."""
    return RecorderId(f"{role}-{_base32(secrets.randbits(30), 6)}")


def rollout_id(run_id: RunId, task: str, harness: str, sample: int) -> RolloutId:
    """Join the parts; raises UsageError for a name that would not survive the trip through URLs, files and labels."""
    for what, name in (("task", task), ("harness", harness)):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{what} name {name!r} may hold only a-z, 0-9, '-' and '_'", hint=f"rename the {what}")
    return RolloutId(f"{run_id}.{task}.{harness}.{sample}")


def split_rollout_id(text: str) -> RolloutParts:
    """The inverse of `rollout_id`; raises UsageError when `text` is not one."""
    parts = text.split(".")
    if len(parts) != 4 or not parts[3].isdigit():
        raise UsageError(
            f"{text!r} is not a rollout id", hint="they look like RUN.TASK.HARNESS.SAMPLE: openforge rollouts"
        )
    return RolloutParts(RunId(parts[0]), parts[1], parts[2], int(parts[3]))


def kind_of_id(text: str) -> Literal["run", "rollout", "call"] | None:
    """What `text` names, by its form alone; None when it is no id that this module makes."""
    if _RUN.fullmatch(text):
        return "run"
    if _CALL.fullmatch(text):
        return "call"
    parts = text.split(".")
    return "rollout" if len(parts) == 4 and _RUN.fullmatch(parts[0]) and parts[3].isdigit() else None


def resolve_run(text: str, known: Iterable[str]) -> RunId:
    """The run a person meant: an id, a unique prefix of one, or `latest`; UsageError says what to type instead."""
    runs = sorted(known)
    if not runs:
        raise UsageError("there are no runs yet", hint="start one with `openforge demo` or `openforge run`")
    if text == "latest":
        return RunId(runs[-1])
    hits = [run for run in runs if text and run.startswith(text)]
    if text in hits:
        return RunId(text)
    if len(hits) == 1:
        return RunId(hits[0])
    if hits:
        some = ", ".join(hits[:4]) + (" …" if len(hits) > 4 else "")
        raise UsageError(f"{text!r} could be {some}", hint="type more of the id")
    raise UsageError(f"no run is called {text!r}", hint="`openforge runs` lists them; `latest` is the newest")
