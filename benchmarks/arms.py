"""Two ways of rolling out the same tasks, side by side: ours from the store, veRL's own loop from its lines.

Rounds are told apart by seed; round 0 is not counted. Pure: rows in, lines of text out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from openforge.errors import OpenForgeError
from trainer.evaluation import FIRST_SEED

PARTS = ("start files", "policy", "tools and the rest", "grading")


@dataclass(frozen=True)
class Timed:
    """One rollout that was graded. Times are seconds of the clock; `parts` are seconds by PARTS."""

    round: int
    asked: float
    started: float
    ended: float
    parts: Mapping[str, float]
    calls: int
    tokens: int
    reward: float

    @property
    def seconds(self) -> float:
        return self.ended - self.started


@dataclass(frozen=True)
class Arm:
    """One way of rolling out: what was graded in the rounds that count, and how many were void there."""

    rollouts: Sequence[Timed]
    void: int

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens over the time from a round's first asking to its last end."""
        rounds = {each.round for each in self.rollouts}
        spans = [[each for each in self.rollouts if each.round == number] for number in rounds]
        busy_s = sum(max(each.ended for each in span) - min(each.asked for each in span) for span in spans)
        return sum(each.tokens for each in self.rollouts) / busy_s


def our_arm(rows: Iterable[Mapping[str, Any]], samples: int) -> Arm:
    """From the store's rollouts with the times of their states."""
    known = [(round_of(row["seed"], samples), row) for row in rows]
    timed = [_ours(number, row) for number, row in known if number and row["reward"] is not None]
    return Arm(timed, sum(row["reward"] is None for number, row in known if number))


def _ours(number: int, row: Mapping[str, Any]) -> Timed:
    at = dict(row["states"])
    ended, model_s = at[row["state"]], row["model_s"] or 0.0
    seconds = (at["running"] - at["starting"], model_s, at["grading"] - at["running"] - model_s, ended - at["grading"])
    parts = dict(zip(PARTS, seconds, strict=True))
    calls, tokens = int(row["calls"] or 0), int(row["tokens"] or 0)
    return Timed(number, at["queued"], at["starting"], ended, parts, calls, tokens, row["reward"])


def their_arm(rows: Iterable[Mapping[str, Any]], samples: int) -> Arm:
    """From the lines of verl_loop.py."""
    known = [(round_of(row["seed"], samples), row) for row in rows]
    timed = [_theirs(number, row) for number, row in known if number and not row["error"]]
    return Arm(timed, sum(bool(row["error"]) for number, row in known if number))


def _theirs(number: int, row: Mapping[str, Any]) -> Timed:
    running, grading, model_s = row["running"], row["grading"], row["model_s"]
    seconds = (running - row["started"], model_s, grading - running - model_s, row["ended"] - grading)
    parts = dict(zip(PARTS, seconds, strict=True))
    times = (row["asked"], row["started"], row["ended"])
    return Timed(number, *times, parts, row["calls"], row["tokens"], row["reward"])


def round_of(seed: int, samples: int) -> int:
    """0 is the round that does not count."""
    return (seed - FIRST_SEED) // samples


def comparison(ours: Arm, theirs: Arm) -> list[str]:
    """The table of both, then the figures. OpenForgeError when one has nothing."""
    if not ours.rollouts or not theirs.rollouts:
        raise OpenForgeError(f"nothing to compare: {len(ours.rollouts)} rollouts of ours, {len(theirs.rollouts)}")
    arms = (ours, theirs)
    lines = [f"{'seconds a rollout':<22}{'recorded':>10}{'veRL':>10}"]
    for part in PARTS:
        means = [fmean(each.parts[part] for each in arm.rollouts) for arm in arms]
        lines.append(f"  {part:<20}{means[0]:>10.2f}{means[1]:>10.2f}")
    for name, of in (("calls", "calls"), ("sampled tokens", "tokens"), ("reward", "reward")):
        means = [fmean(getattr(each, of) for each in arm.rollouts) for arm in arms]
        lines.append(f"{name + ' a rollout':<22}{means[0]:>10.2f}{means[1]:>10.2f}")
    count = f"n = {len(ours.rollouts)} and {len(theirs.rollouts)}, void {ours.void} and {theirs.void}"
    means = [fmean(each.seconds for each in arm.rollouts) for arm in arms]
    middles = [median(each.seconds for each in arm.rollouts) for arm in arms]
    speeds = [arm.tokens_per_s for arm in arms]
    for name, (first, second), unit in (
        ("seconds a rollout, mean", means, "s"),
        ("seconds a rollout, median", middles, "s"),
        ("policy tokens a second", speeds, "tokens/s"),
    ):
        lines.append(f"{name}: recorded / veRL {first / second:.2f} x ({first:.1f} / {second:.1f} {unit}; {count})")
    return lines


def history_lines(found: Counter[str], prompts: int, other: int) -> list[str]:
    later = found["prompts"] - found["conversations"]
    return [
        f"first prompts of veRL's loop that are not react's: {other} of {prompts}",
        f"prompts that veRL's continuous tokens make other than recorded: {found['verl']} of {found['prompts']}",
        f"answers that veRL's parser reads as other tool calls: {found['parsed']} of {found['answers']}",
        f"later prompts that differ once the history is rendered anew: {found['rendered']} of {later}, "
        f"{found['beyond']} of them by more than the empty thoughts that the template drops",
    ]
