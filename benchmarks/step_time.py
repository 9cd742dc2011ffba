"""Where the time of a training step goes, from a run's store: phases of a step, and states of the rollouts in `gen`.

Means over the steps that count, without the run's first, which warms up. Only what is in the store: the CPU of a
rollout is not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from openforge.errors import UsageError
from openforge.store.connect import find_run, query

PHASES = ("gen", "logprobs", "advantage", "update", "sync", "save")
STATES = ("queued", "starting", "running", "grading")

_METRICS = "SELECT step, name, value FROM metrics WHERE name = 'train.step_s' OR name LIKE 'train.time_s.%'"
_STATES = """
SELECT t.step, s.rollout_id, s.state, s.ts
FROM raw.rollout_state s JOIN rollouts r USING (run_id, rollout_id, attempt) JOIN trained t USING (run_id, rollout_id)
ORDER BY s.rollout_id, s.ts"""
_CALLS = """
SELECT t.step, c.rollout_id, sum(c.duration_s) AS seconds, count(*) AS calls, sum(c.completion_tokens) AS tokens
FROM calls c JOIN rollouts r USING (run_id, rollout_id, attempt) JOIN trained t USING (run_id, rollout_id)
GROUP BY ALL"""


@dataclass(frozen=True)
class StepTime:
    """Seconds a step. `evaluation` comes after a step; `rest` is what of the step no phase explains."""

    steps: int
    phases: Mapping[str, float]
    rest: float
    evaluation: float

    @property
    def whole(self) -> float:
        return sum(self.phases.values()) + self.rest + self.evaluation


@dataclass(frozen=True)
class RolloutTime:
    """Means of a rollout that was trained: seconds in each state, seconds that its calls took, calls, tokens."""

    rollouts: int
    states: Mapping[str, float]
    model_s: float
    calls: float
    tokens: float


def counted(steps: Iterable[int]) -> list[int]:
    """All but the first; that one where there is no other."""
    known = sorted(set(steps))
    return known[1:] or known


def step_time(rows: Sequence[Mapping[str, Any]]) -> StepTime:
    """`rows`: step, name and value of the view `metrics`."""
    values = {(row["step"], row["name"]): row["value"] for row in rows}
    steps = counted(step for step, name in values if name == "train.step_s")
    if not steps:
        raise UsageError("this run has no training step", hint="openforge runs")

    def mean(part: str) -> float:
        return fmean(values.get((step, f"train.time_s.{part}"), 0.0) for step in steps)

    phases = {phase: mean(phase) for phase in PHASES}
    step_s = fmean(values[step, "train.step_s"] for step in steps)
    return StepTime(len(steps), phases, step_s - sum(phases.values()), mean("eval"))


def state_seconds(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Seconds of each rollout in each state, from its `state` and `ts` (s) in the order of time."""
    entered: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        entered[row["rollout_id"]].append((row["state"], row["ts"]))
    spent: dict[str, dict[str, float]] = {}
    for rollout, states in entered.items():
        spent[rollout] = dict.fromkeys(STATES, 0.0)
        for (state, since), (_, until) in pairwise(states):
            if state in STATES:
                spent[rollout][state] += until - since
    return spent


def rollout_time(states: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> RolloutTime:
    """Of the rollouts in `states`; one without a row in `calls` made none."""
    spent = state_seconds(states)
    if not spent:
        raise UsageError("this run trained on no rollout", hint="openforge rollouts")
    by = {row["rollout_id"]: row for row in calls}

    def mean(column: str) -> float:
        return fmean(float(by[rollout][column] or 0) if rollout in by else 0.0 for rollout in spent)

    means = {state: fmean(seconds[state] for seconds in spent.values()) for state in STATES}
    return RolloutTime(len(spent), means, mean("seconds"), mean("calls"), mean("tokens"))


def print_step_time(store_root: Path, name: str) -> None:
    """Both tables of a training run. UsageError when it trained nothing."""
    run_id = find_run(store_root, name)
    metrics = query(store_root, _METRICS, runs=[run_id])
    steps = set(counted(row["step"] for row in metrics if row["name"] == "train.step_s"))
    step = step_time(metrics)
    states = [row for row in query(store_root, _STATES, runs=[run_id]) if row["step"] in steps]
    calls = [row for row in query(store_root, _CALLS, runs=[run_id]) if row["step"] in steps]
    print("\n".join([*step_lines(step), "", *rollout_lines(rollout_time(states, calls), step)]), flush=True)


def step_lines(step: StepTime) -> list[str]:
    parts = {**step.phases, "rest": step.rest, "eval": step.evaluation}
    lines = [f"{'a step':<12}{'s':>8}{'share':>8}   mean of {step.steps} steps without the first"]
    lines += [f"  {name:<10}{seconds:>8.2f}{seconds / step.whole:>8.1%}" for name, seconds in parts.items()]
    return [*lines, f"  {'whole':<10}{step.whole:>8.2f}{1:>8.1%}"]


def rollout_lines(rollout: RolloutTime, step: StepTime) -> list[str]:
    whole = sum(rollout.states.values())
    lines = [f"{'a rollout':<12}{'s':>8}{'share':>8}   mean of {rollout.rollouts} that were trained"]
    for state, seconds in rollout.states.items():
        lines.append(f"  {state:<10}{seconds:>8.2f}{seconds / whole:>8.1%}")
        if state == "running":
            lines.append(f"    {'policy':<8}{rollout.model_s:>8.2f}{rollout.model_s / whole:>8.1%}")
    work_s = rollout.rollouts / step.steps * (whole - rollout.states["queued"])
    lines.append(f"  {rollout.calls:.1f} calls with {rollout.tokens:.0f} sampled tokens a rollout")
    if step.phases["gen"] > 0:
        lines.append(f"  {work_s / step.phases['gen']:.1f} rollouts at work at a time during gen, on average")
    return lines
