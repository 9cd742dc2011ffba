"""A run that goes on, from its new records alone: the rows of the views `runs` and `rollouts` without reading again.

A query over the segments of a live run reads all of them each time; this takes in what was appended since. It says
what the views say (a test holds the two equal). Pure: records in, rows out.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

type Row = dict[str, Any]

KINDS = (
    "run.start",
    "run.pause",
    "run.end",
    "rollout.state",
    "grade",
    "call.open",
    "call.close",
    "call.abort",
    "sample",
)
_REACH = {"queued": 0, "starting": 1, "running": 2, "grading": 3}
_ENDED = 4
_ABOUT = ("task", "harness", "sample", "step", "group_id", "seed")
_RECENT_S = 60.0


@dataclass
class _Attempt:
    reach: int = -1
    state: str = ""
    writer: str = ""
    about: Row = field(default_factory=dict)
    error_class: str | None = None
    detail: str | None = None
    reward: float | None = None
    started: float | None = None
    ended: float | None = None
    calls: int = 0
    samples: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Answered:
    """A call that just ended: when, whose, by which writer, and how many tokens were sampled."""

    ts: float
    rollout_id: str
    recorder_id: str
    tokens: int


class RunFold:
    """Takes records in the order in which they were written; each record once."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.recent: deque[Answered] = deque()
        """The calls that ended in the last minute of the journal, the oldest first."""
        self.open_calls: dict[str, tuple[str, float]] = {}
        """Calls in flight: (rollout_id, opened_ts) by call_id."""
        self._attempts: dict[str, dict[int, _Attempt]] = {}
        self._starts: dict[str, Row] = {}
        self._ends: dict[str, str] = {}
        self._paused: dict[str, bool] = {}
        self._began: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """One record; kinds that are not in KINDS change nothing."""
        match record["kind"]:
            case "rollout.state":
                self._state(record)
            case "grade":
                self._attempt(record).reward = record["reward"]
            case "call.open":
                self.open_calls[record["call_id"]] = (record["rollout_id"], record["ts"])
            case "call.close" | "call.abort":
                self._call(record)
            case "sample":
                self._attempt(record).samples += 1
            case "run.start":
                self._began = record["ts"] if self._began is None else min(self._began, record["ts"])
                self._starts[record["recorder_id"]] = dict(record)
            case "run.pause":
                self._paused[record["recorder_id"]] = record["paused"]
            case "run.end":
                self._ends[record["recorder_id"]] = record["state"]

    def _attempt(self, record: Mapping[str, Any]) -> _Attempt:
        attempts = self._attempts.setdefault(record["rollout_id"], {})
        return attempts.setdefault(record["attempt"] or 0, _Attempt())

    def _state(self, record: Mapping[str, Any]) -> None:
        found, state = self._attempt(record), record["state"]
        reach = _REACH.get(state, _ENDED)
        for name in _ABOUT:
            if record.get(name) is not None:
                found.about[name] = record[name]
        if reach in (1, 2):
            found.started = record["ts"] if found.started is None else min(found.started, record["ts"])
        if reach == _ENDED:
            found.ended = record["ts"] if found.ended is None else max(found.ended, record["ts"])
        if reach >= found.reach:
            found.reach, found.state, found.writer = reach, state, record["recorder_id"]
            found.error_class = record.get("error_class") or found.error_class
            found.detail = record.get("detail") or found.detail

    def _call(self, record: Mapping[str, Any]) -> None:
        found = self._attempt(record)
        found.calls += 1
        self.open_calls.pop(record["call_id"], None)
        if record["kind"] == "call.abort":
            return
        prompt = record.get("prompt_tokens")
        prompt = record.get("prompt_len") if prompt is None else prompt
        sampled = record.get("completion_tokens")
        if sampled is None and record.get("completion_ids") is not None:
            sampled = len(record["completion_ids"])
        if prompt is not None:
            found.prompt_tokens = (found.prompt_tokens or 0) + prompt
        if sampled is not None:
            found.completion_tokens = (found.completion_tokens or 0) + sampled
        self.recent.append(Answered(record["ts"], record["rollout_id"], record["recorder_id"], sampled or 0))
        while self.recent and self.recent[0].ts < record["ts"] - _RECENT_S:
            self.recent.popleft()

    def rollout_rows(self, live: Collection[str]) -> list[Row]:
        """As `openforge.store.lists.list_rollouts`. `live`: the writers that are alive; what had another is lost."""
        rows = []
        for rollout_id, attempts in self._attempts.items():
            known = {number: one for number, one in attempts.items() if one.reach >= 0}
            if known:
                rows.append(_row(rollout_id, max(known), known[max(known)], live))
        return sorted(rows, key=lambda row: (row["task"] or "", row["harness"] or "", row["sample"] or 0))

    def run_row(self, live: Collection[str]) -> Row | None:
        """As `openforge.store.lists.list_runs`; None before the run's first record."""
        if not self._starts:
            return None
        writer, last = max(self._starts.items(), key=lambda item: (item[1].get("incarnation") or 0, item[1]["ts"]))
        rollouts = self.rollout_rows(live)
        states = Counter(row["state"] for row in rollouts)
        rewards = [row["reward"] for row in rollouts if row["reward"] is not None]
        policy = last["policy"]
        now = "interrupted" if writer not in live else "paused" if self._paused.get(writer) else "running"
        return {
            "run_id": self.run_id,
            "created_at": _time(self._began, whole=True),
            "state": self._ends.get(writer) or now,
            "policy": policy.get("model") if isinstance(policy, Mapping) else policy,
            "harnesses": " ".join(map(str, last["harnesses"])) if isinstance(last["harnesses"], list) else None,
            "rollouts": len(rollouts),
            "done": states["done"],
            "failed": states["failed"],
            "error": states["error"] + states["lost"],
            "cancelled": states["cancelled"],
            "reward": round(sum(rewards) / len(rewards), 3) if rewards else None,
        }


def _row(rollout_id: str, attempt: int, found: _Attempt, live: Collection[str]) -> Row:
    over = found.reach == _ENDED
    began, ended = found.started, found.ended
    seconds = None if began is None or ended is None or ended < began else ended - began  # a clock may be set back
    detail = found.detail
    return {
        "rollout_id": rollout_id,
        "state": found.state if over or found.writer in live else "lost",
        "reward": found.reward,
        "calls": found.calls,
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "samples": found.samples,
        "seconds": None if seconds is None else round(seconds, 1),
        "attempt": attempt,
        "error_class": found.error_class,
        "detail": f"{detail[:200]}…" if detail and len(detail) > 200 else detail,
        **{name: found.about.get(name) for name in ("task", "harness", "sample")},
        "started_at": _time(found.started),
        **{name: found.about.get(name) for name in ("step", "group_id", "seed")},
    }


def _time(ts: float | None, *, whole: bool = False) -> datetime | None:
    if ts is None:
        return None
    seconds, micros = divmod(round(ts * 1e6), 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=0 if whole else micros)
