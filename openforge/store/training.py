"""What a training run has come to, followed while it trains: numbers by step, and the rollouts of each step.

Reads the orchestrator's journal only, each byte of it once however often somebody looks, so that a long training stays
cheap to watch; which of a step's numbers count is the rule of the `metrics` and `trained` views. Blocking: for a
thread. Does not know who shows it, nor the recorders' tokens.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openforge.journal.reader import Tail
from openforge.store.snapshot import known_runs, take_snapshot

type Row = dict[str, Any]

STEP_COLUMNS = ("step", "reward", "success", "rollouts", "staleness", "samples", "seconds")
_ROLE = "orchestrator"
_KINDS = ("run.start", "run.pause", "run.end", "train.start", "train.step", "metric", "rollout.state", "grade")
_TRAINING = ("train.start", "train.step", "metric")
_REACH = {"queued": 0, "starting": 1, "running": 2, "grading": 3}
_ENDED = 4
_CHUNK = 8 << 20
SUCCESS = 1.0


def step_row(step: int, metrics: Mapping[str, float]) -> Row:
    """A step as a row: STEP_COLUMNS."""
    prefix = "train.success."
    by_harness = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return {
        "step": step,
        "reward": round(metrics.get("train.reward", 0.0), 3),
        "success": ", ".join(f"{name} {value:.2f}" for name, value in by_harness.items()),
        "rollouts": int(metrics.get("train.rollouts", 0)),
        "staleness": int(metrics.get("train.staleness_max", 0)),
        "samples": round(metrics.get("train.samples_per_rollout", 0.0), 2),
        "seconds": round(metrics.get("train.step_s", 0.0), 1),
    }


class TrainingRuns:
    """Which runs of a store train; of a run that does not, only what came since is looked at."""

    def __init__(self, store_root: Path) -> None:
        self._store_root = store_root
        self._trains: set[str] = set()
        self._tails: dict[str, Tail] = {}

    def newest_first(self) -> list[str]:
        """Their ids. Raises JournalError, OSError."""
        return [run_id for run_id in reversed(known_runs(self._store_root)) if self._does(run_id)]

    def _does(self, run_id: str) -> bool:
        if run_id not in self._trains and self._has_begun(run_id):
            self._trains.add(run_id)
            del self._tails[run_id]
        return run_id in self._trains

    def _has_begun(self, run_id: str) -> bool:
        run_dir = self._store_root / "runs" / run_id
        tail = self._tails.setdefault(run_id, Tail(run_dir, _TRAINING, role=_ROLE))
        while True:
            for record in tail.poll(_CHUNK):
                if record["kind"] != "metric" or record["name"].startswith("train."):
                    return True
            if not tail.more:
                return False


@dataclass(slots=True)
class Rollout:
    """How a rollout that a trainer asked for stands."""

    rollout_id: str
    task: str
    harness: str
    step: int
    group: str
    life: int  # of the orchestrator that was asked
    state: str = "queued"
    attempt: int = 0
    reach: int = 0
    reward: float | None = None
    error_class: str | None = None
    invalid_calls: int = 0


@dataclass(frozen=True)
class Curve:
    """One name's values, in the order of steps."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Progress:
    """A training run at one moment. `state` as in the `runs` view; `heard_at`: the trainer's last word, Unix time."""

    run_id: str
    state: str
    curves: Mapping[str, Curve] = field(repr=False)
    steps: Sequence[Row] = field(repr=False)  # step_row and `evaluation`, the newest first
    trainer_pid: int
    from_step: int
    starts: int
    heard_at: float | None

    @property
    def last_step(self) -> int:
        """The last one that the weights learned from."""
        return next((row["step"] for row in self.steps if not row["under_way"]), self.from_step)


@dataclass(frozen=True)
class Group:
    """The rollouts whose rewards are compared: of one task in one harness, as a rule."""

    task: str
    harness: str
    rollouts: Sequence[Rollout]


@dataclass(frozen=True)
class Step:
    """What a step learned from, or is made of so far. `asked`: the steps that its rollouts were asked for at, the first
    and the last; `errors`: rollouts asked for at it that an error of ours ended."""

    step: int
    groups: Sequence[Group]
    learned: bool
    asked: tuple[int, int]
    errors: int


class TrainingLog:
    """One run's journal as far as it was read. Threads may share it."""

    def __init__(self, store_root: Path, run_id: str) -> None:
        self.run_id, self._store_root = run_id, store_root
        self._tail = Tail(store_root / "runs" / run_id, _KINDS, role=_ROLE)
        self._lock = threading.Lock()
        self._lives: dict[str, int] = {}  # of orchestrators, by their recorder_id
        self._starts: list[tuple[int, int, int, int]] = []  # of trainers: incarnation, from_step, pid, orchestrator
        self._values: dict[str, dict[int, tuple[tuple[int, int, int], float]]] = defaultdict(dict)
        self._trained: dict[int, tuple[tuple[int, int, int], list[str]]] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._asked: dict[int, list[Rollout]] = defaultdict(list)
        self._counted: dict[int, dict[str, float]] = {}
        self._stale: set[int] = set()
        self._paused: dict[str, bool] = {}
        self._end: tuple[int, str] = (-1, "")
        self._heard_at: float | None = None
        self._shown: Progress | None = None

    def look(self) -> Progress:
        """Read what has come since. Raises JournalError, OSError."""
        with self._lock:
            changed = self._shown is None
            while True:
                records = self._tail.poll(_CHUNK)
                for record in records:
                    self._take(record)
                changed = changed or bool(records)
                if not self._tail.more:
                    break
            state = self._state()
            if self._shown is None or changed or state != self._shown.state:
                self._shown = self._progress(state)
            return self._shown

    def step(self, step: int) -> Step:
        """The rollouts that it learned from; those that were asked for at it, when no update has been made of them."""
        with self._lock:
            told = self._trained.get(step)
            chosen = [self._rollouts[name] for name in told[1] if name in self._rollouts] if told else []
            mine = chosen or self._asked.get(step, [])
            groups: dict[tuple[str, str, str], list[Rollout]] = defaultdict(list)
            for rollout in mine:
                groups[rollout.task, rollout.harness, rollout.group].append(rollout)
            asked = [rollout.step for rollout in mine] or [step]
            made = [Group(task, harness, tuple(some)) for (task, harness, _), some in sorted(groups.items())]
            errors = sum(rollout.state == "error" for rollout in self._asked.get(step, []))
            return Step(step, made, bool(chosen), (min(asked), max(asked)), errors)

    # What the records say

    def _take(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "run.start":
                self._lives[record["recorder_id"]] = record.get("incarnation") or 0
            case "run.pause":
                self._paused[record["recorder_id"]] = record["paused"]
            case "run.end":
                self._end = max(self._end, (self._lives.get(record["recorder_id"], 0), record["state"]))
            case "train.start":
                self._begin(record)
            case "metric":
                self._hear(record)
                if self._counts(record):
                    _keep(self._values[record["name"]], record["step"], self._rank(record), record["value"])
            case "train.step":
                self._hear(record)
                if self._counts(record):
                    _keep(self._trained, record["step"], self._rank(record), record["rollouts"])
            case "rollout.state":
                self._follow(record)
            case "grade":
                self._grade(record)

    def _begin(self, record: Mapping[str, Any]) -> None:
        """A trainer starts: what an earlier one did behind its checkpoint counts no more."""
        self._hear(record)
        incarnation, from_step, life = record["incarnation"], record["from_step"], self._lives[record["recorder_id"]]
        self._starts.append((incarnation, from_step, record.get("pid") or 0, life))
        for step in [step for step in self._asked if step > from_step]:
            self._asked[step] = [rollout for rollout in self._asked[step] if rollout.life > life]
            self._stale.add(step)
        every: list[dict[int, Any]] = [*self._values.values(), self._trained]
        for kept in every:
            for step in [step for step, (rank, _) in kept.items() if step > from_step and 0 <= rank[0] < incarnation]:
                del kept[step]

    def _counts(self, record: Mapping[str, Any]) -> bool:
        mine = record.get("incarnation")
        return mine is None or not any(other > mine and at < record["step"] for other, at, *_ in self._starts)

    def _rank(self, record: Mapping[str, Any]) -> tuple[int, int, int]:
        mine = record.get("incarnation")
        return (-1 if mine is None else mine, self._lives.get(record["recorder_id"], 0), record["seq"])

    def _hear(self, record: Mapping[str, Any]) -> None:
        self._heard_at = max(self._heard_at or 0.0, record["ts"])

    def _follow(self, record: Mapping[str, Any]) -> None:
        name, attempt = record["rollout_id"], record.get("attempt") or 0
        rollout = self._rollouts.get(name)
        if rollout is None:
            if record.get("purpose") != "train" or record.get("step") is None:
                return
            task, harness = record.get("task") or "", record.get("harness") or ""
            life = self._lives.get(record["recorder_id"], 0)
            rollout = Rollout(name, task, harness, record["step"], record.get("group_id") or "", life)
            self._rollouts[name] = rollout
            if not any(later > life and at < rollout.step for _, at, _, later in self._starts):
                self._asked[rollout.step].append(rollout)
        reach = _REACH.get(record["state"], _ENDED)
        if (attempt, reach) >= (rollout.attempt, rollout.reach):
            if attempt > rollout.attempt:
                rollout.reward = None
            rollout.attempt, rollout.reach, rollout.state = attempt, reach, record["state"]
            rollout.error_class = record.get("error_class")
            rollout.invalid_calls = record.get("invalid_calls") or 0
            self._stale.add(rollout.step)

    def _grade(self, record: Mapping[str, Any]) -> None:
        rollout = self._rollouts.get(record["rollout_id"])
        if rollout is not None and (record.get("attempt") or 0) == rollout.attempt:
            rollout.reward = record["reward"]
            self._stale.add(rollout.step)

    # What they come to

    def _state(self) -> str:
        life = max(self._lives.values(), default=0)
        if self._end[0] == life:
            return self._end[1]
        live = take_snapshot(self._store_root, [self.run_id]).live
        writers = [name for _, name in live if name.startswith(f"{_ROLE}-")]
        if not writers:
            return "interrupted"
        return "paused" if any(self._paused.get(name) for name in writers) else "running"

    def _progress(self, state: str) -> Progress:
        for step in self._stale:
            self._counted[step] = dict(_count(self._asked[step]))
            if not self._asked[step]:
                del self._asked[step], self._counted[step]
        self._stale.clear()
        values: dict[str, dict[int, float]] = {
            name: {step: value for step, (_, value) in kept.items()} for name, kept in self._values.items() if kept
        }
        for step, counted in self._counted.items():
            for name, value in counted.items():
                values.setdefault(name, {}).setdefault(step, value)
        _add_tokens(values)
        curves, rows = {}, self._rows(values)
        last = next((row["step"] for row in rows if not row["under_way"]), None)  # behind it a step is half of one
        for name, by_step in sorted(values.items()):
            steps = sorted(step for step in by_step if last is None or step <= last)
            curves[name] = Curve(steps, [by_step[step] for step in steps])
        incarnation, from_step, pid, _ = max(self._starts, default=(-1, 0, 0, 0))
        return Progress(self.run_id, state, curves, rows, pid, from_step, incarnation + 1, self._heard_at)

    def _rows(self, values: Mapping[str, Mapping[int, float]]) -> list[Row]:
        told = {step for name, by_step in values.items() if name.startswith(("train.", "eval.")) for step in by_step}
        by_step: dict[int, dict[str, float]] = {step: {} for step in (*told, *self._trained, *self._counted)}
        for name, numbers in values.items():
            for step, value in numbers.items():
                by_step.setdefault(step, {})[name] = value
        rows = []
        for step, metrics in sorted(by_step.items(), reverse=True):
            learned = step in self._trained or any(name.startswith("train.") for name in metrics)
            row: Row = step_row(step, metrics)
            if not learned or "train.reward" not in metrics:
                row |= {"reward": metrics.get("rollouts.reward")}
            if not learned:
                row |= dict.fromkeys(("rollouts", "staleness", "samples", "seconds"))
            rows.append({**row, "evaluation": evaluation_text(metrics), "under_way": not learned})
        return rows


def evaluation_text(metrics: Mapping[str, float]) -> str:
    """`0.42 [0.30, 0.55]`, or nothing when there was no evaluation."""
    if "eval.success" not in metrics:
        return ""
    low, high = metrics.get("eval.success.low"), metrics.get("eval.success.high")
    interval = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    return f"{metrics['eval.success']:.2f}{interval}"


def _keep(kept: dict[int, Any], step: int, rank: tuple[int, int, int], value: Any) -> None:
    if step not in kept or kept[step][0] < rank:
        kept[step] = (rank, value)


def _count(rollouts: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    """What the rollouts of a step say that no trainer writes; a fault that is ours is never a reward."""
    graded = [rollout for rollout in rollouts if rollout.reward is not None]
    if graded:
        yield "rollouts.reward", sum(rollout.reward or 0.0 for rollout in graded) / len(graded)
    stumbled = [rollout for rollout in graded if rollout.invalid_calls > 0]
    if stumbled:
        yield (
            "rollouts.recovered",
            sum((rollout.reward or 0.0) >= SUCCESS for rollout in stumbled) / len(stumbled),
        )
    if retried := sum(rollout.attempt > 0 for rollout in rollouts):
        yield "rollouts.retried", float(retried)
    for name in sorted({rollout.error_class or "unknown" for rollout in rollouts if rollout.state == "error"}):
        failed = sum(rollout.state == "error" and (rollout.error_class or "unknown") == name for rollout in rollouts)
        yield f"rollouts.errors.{name}", float(failed)


def _add_tokens(values: dict[str, dict[int, float]]) -> None:
    """Tokens a rollout, from what a trainer tells of its speed."""
    parts = [values.get(name, {}) for name in ("train.tokens_per_s", "train.step_s", "train.rollouts")]
    steps = [step for step in parts[0] if step in parts[1] and parts[2].get(step)]
    if steps:
        values["rollouts.tokens"] = {step: parts[0][step] * parts[1][step] / parts[2][step] for step in steps}
