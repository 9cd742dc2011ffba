"""Proof that what would be trained is what was sampled: score each sample's ids again and compare the logprobs.

A wrong prompt id, a lost one, a wrong sampled id or shifted logprobs all make the recomputed numbers differ by far
more than arithmetic does. How much arithmetic differs depends on the dtype (decoding and prefill run other kernels):
in float32 at most 3e-5 was measured, mean 6e-6. How much a fault differs depends on the policy: one that is nearly sure
of every token, such as the starter, moves by as little as 2e-4 for one wrong prompt id, and what lies beyond its
attention window moves nothing. The float32 limits lie between the two. In bfloat16 one wrong prompt id is near the
noise, so that answer is called weak. Knows samples and a scorer; not where either comes from.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from openforge.errors import CheckError, OpenForgeError

Scorer = Callable[[Sequence[int]], Awaitable[Sequence[float | None]]]
"""Token ids in; out the logprob of each id given those before it (the first has none)."""


class Tolerance(NamedTuple):
    """The largest and the mean absolute difference of logprobs that a sample may show; `weak` = proves little."""

    maximum: float
    mean: float
    weak: bool


_STRONG = Tolerance(1e-4, 2e-5, weak=False)
_WEAK = Tolerance(1.0, 0.1, weak=True)


def tolerance(dtype: str) -> Tolerance:
    """The limits for a policy that computes in `dtype`."""
    return _STRONG if dtype == "float32" else _WEAK


@dataclass(frozen=True)
class Sample:
    """One row that training would see. `versions` are all weight versions its sampled tokens came from."""

    rollout_id: str
    sample_id: str
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    versions: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Row:
    """What came out for one sample; `position` is where the largest difference is, `problem` empty when it passed."""

    rollout_id: str
    sample_id: str
    tokens: int
    sampled: int
    max_diff: float | None
    mean_diff: float | None
    position: int | None
    problem: str


@dataclass(frozen=True)
class Report:
    """All rows; `max_diff` and `mean_diff` are over every sampled token that could be compared."""

    rows: tuple[Row, ...]
    limits: Tolerance

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.problem]

    @property
    def sampled(self) -> int:
        return sum(row.sampled for row in self.rows)

    @property
    def max_diff(self) -> float:
        return max((row.max_diff for row in self.rows if row.max_diff is not None), default=0.0)

    @property
    def mean_diff(self) -> float:
        compared = [(row.mean_diff, row.sampled) for row in self.rows if row.mean_diff is not None]
        total = sum(count for _, count in compared)
        return sum(mean * count for mean, count in compared) / total if total else 0.0

    def summary(self) -> str:
        """One line for a person."""
        verdict = f"{len(self.failures)} of {len(self.rows)} samples fail" if self.failures else "every sample passes"
        weak = " (weak: this dtype hides small faults; verify in float32)" if self.limits.weak else ""
        return (
            f"verify: {len(self.rows)} samples, {self.sampled} sampled tokens, "
            f"largest difference {self.max_diff:.1e} (limit {self.limits.maximum:.0e}), "
            f"mean {self.mean_diff:.1e} (limit {self.limits.mean:.0e}): {verdict}{weak}"
        )


def check_versions(samples: Iterable[Sample], serving: str) -> None:
    """Other weights give other numbers, and that would be no proof of anything. Raises CheckError."""
    recorded = sorted({version for sample in samples for version in sample.versions})
    if others := [version for version in recorded if version != serving]:
        raise CheckError(
            f"the run was sampled from weights {', '.join(others)}, but {serving or 'an unknown version'} is served",
            hint="serve the recorded policy (`openforge policy list`), then verify again",
        )


async def verify(samples: Sequence[Sample], score: Scorer, limits: Tolerance, *, concurrency: int = 8) -> Report:
    """Score every sample, at most `concurrency` at once, and compare. Never raises for a sample: its row says why."""
    gate = asyncio.Semaphore(concurrency)

    async def one(sample: Sample) -> Row:
        async with gate:
            return await _check(sample, score, limits)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(sample)) for sample in samples]
    return Report(tuple(task.result() for task in tasks), limits)


async def _check(sample: Sample, score: Scorer, limits: Tolerance) -> Row:
    sampled = [index for index, flag in enumerate(sample.loss_mask) if flag]
    if problem := _malformed(sample, sampled):
        return _row(sample, sampled, problem)
    try:
        scored = await score(sample.token_ids)
    except OpenForgeError as error:
        return _row(sample, sampled, f"no score: {error}")
    if len(scored) != len(sample.token_ids):
        return _row(sample, sampled, f"{len(scored)} scores for {len(sample.token_ids)} ids")
    diffs = [_difference(sample.logprobs[index], scored[index]) for index in sampled]
    largest, mean = max(diffs), sum(diffs) / len(diffs)
    problem = ""
    if not largest <= limits.maximum:
        problem = f"largest difference {largest:.2g} > {limits.maximum:g}"
    elif not mean <= limits.mean:
        problem = f"mean difference {mean:.2g} > {limits.mean:g}"
    return _row(sample, sampled, problem, largest, mean, sampled[diffs.index(largest)])


def _row(
    sample: Sample,
    sampled: list[int],
    problem: str,
    largest: float | None = None,
    mean: float | None = None,
    position: int | None = None,
) -> Row:
    size = len(sample.token_ids)
    return Row(sample.rollout_id, sample.sample_id, size, len(sampled), largest, mean, position, problem)


def _malformed(sample: Sample, sampled: list[int]) -> str:
    if not len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs):
        lengths = f"{len(sample.token_ids)} ids, {len(sample.loss_mask)} mask, {len(sample.logprobs)} logprobs"
        return f"lengths differ: {lengths}"
    if not sampled:
        return "no sampled token"
    if bare := [index for index in sampled if sample.logprobs[index] is None]:
        return f"{len(bare)} sampled tokens have no logprob, the first at {bare[0]}"
    if sampled[0] == 0:
        return "the first token is marked as sampled, so there was no prompt"
    return ""


def _difference(recorded: float | None, scored: float | None) -> float:
    # A missing or undefined number is as far off as can be; NaN would slip through every comparison.
    if recorded is None or scored is None or not (math.isfinite(recorded) and math.isfinite(scored)):
        return math.inf
    return abs(recorded - scored)
