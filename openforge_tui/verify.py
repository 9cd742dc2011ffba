"""Proof that what would be trained is what was sampled: score each sample's ids again and compare the logprobs.

A wrong prompt id, a lost one, a wrong sampled id or shifted logprobs all make the recomputed numbers differ by far
more than arithmetic does. How much arithmetic differs depends on the dtype (decoding and prefill run other kernels):
in float32 at most 3e-5 was measured, mean 6e-6. How much a fault differs depends on the policy: one that is nearly sure
of every token, such as the starter, moves by as little as 2e-4 for one wrong prompt id, and what lies beyond its
attention window moves nothing. The float32 limits lie between the two. In bfloat16 one wrong prompt id is near the
noise, so that answer is called weak. Knows samples and what they score; not where either comes from.
"""

import asyncio
import math
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from openforge.errors import CheckError, OpenForgeError

Scorer = Callable[[Sequence[int]], Awaitable[Sequence[float | None]]]
"""Token ids in; out the logprob of each id given those before it (the first has none)."""


class Tolerance(NamedTuple):
    """The largest and the mean absolute difference of logprobs that a sample may show; `weak` = proves little."""

    maximum: float
    mean: float
    weak: bool


_SHOWN = 8  # of the weights that were not saved
_STRONG = Tolerance(1e-4, 2e-5, weak=False)
_WEAK = Tolerance(1.0, 0.1, weak=True)


def tolerance(dtype: str) -> Tolerance:
    """The limits for a policy that computes in `dtype`."""
    return _STRONG if dtype == "float32" else _WEAK


@dataclass(frozen=True)
class Sample:
    """One row that training would see. `spans` are (position, weight version from there on), rising; what they say of
    ids that were not sampled means nothing."""

    rollout_id: str
    sample_id: str
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float | None]
    spans: Sequence[tuple[int, str]] = ()

    @cached_property
    def sampled(self) -> list[int]:
        """The positions of the sampled ids."""
        return [index for index, flag in enumerate(self.loss_mask) if flag]

    @cached_property
    def versions(self) -> dict[str, list[int]]:
        """The positions that each weight version sampled; "" stands for those that no span covers."""
        found: dict[str, list[int]] = {}
        for index in self.sampled:
            place = bisect_right(self.spans, index, key=lambda span: span[0])
            found.setdefault(self.spans[place - 1][1] if place else "", []).append(index)
        return found


@dataclass(frozen=True)
class Row:
    """What came out for one sample; `position` is where the largest difference is, `problem` empty when it passed.
    `versions`: the weights that sampled it, in order."""

    rollout_id: str
    sample_id: str
    tokens: int
    sampled: int
    max_diff: float | None
    mean_diff: float | None
    position: int | None
    problem: str
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """All rows; `max_diff` and `mean_diff` are over every sampled token that could be compared.

    `unsaved`: weights that nobody has any more; the `left` samples that have tokens of them are in no row.
    """

    rows: tuple[Row, ...]
    limits: Tolerance
    unsaved: tuple[str, ...] = ()
    left: int = 0

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
            f"verify: {_samples(len(self.rows))}, {self.sampled:,} sampled tokens{self._sources()}, "
            f"largest difference {self.max_diff:.1e} (limit {self.limits.maximum:.0e}), "
            f"mean {self.mean_diff:.1e} (limit {self.limits.mean:.0e}): {verdict}{weak}"
        )

    def _sources(self) -> str:
        count = len({version for row in self.rows for version in row.versions})
        mixed = sum(len(row.versions) > 1 for row in self.rows)
        return f" from {count} weight versions, {_samples(mixed)} with two or more" if count > 1 else ""

    def unverified(self) -> str:
        """What could not be verified, for a person; empty when everything was."""
        if not self.left:
            return ""
        more = len(self.unsaved) - _SHOWN
        weights = ", ".join(self.unsaved[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return (
            f"not verifiable: {_samples(self.left)} of weights {weights}, not saved; [trainer] save_every = 1 keeps all"
        )


def _samples(count: int) -> str:
    return f"{count:,} sample{'' if count == 1 else 's'}"


def check_versions(samples: Iterable[Sample], serving: str) -> None:
    """Other weights give other numbers, and that would be no proof of anything. Raises CheckError."""
    recorded = sorted({version for sample in samples for version in sample.versions if version})
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
    if problem := malformed(sample):
        return failed(sample, problem)
    try:
        scored = await score(sample.token_ids)
    except OpenForgeError as error:
        return failed(sample, f"no score: {error}")
    return compare(sample, scored, limits)


def compare(sample: Sample, scored: Sequence[float | None], limits: Tolerance) -> Row:
    """The row of a sample that is not malformed; `scored` has a logprob where an id was sampled."""
    if len(scored) != len(sample.token_ids):
        return failed(sample, f"{len(scored)} scores for {len(sample.token_ids)} ids")
    diffs = [_difference(sample.logprobs[index], scored[index]) for index in sample.sampled]
    largest, mean = max(diffs), sum(diffs) / len(diffs)
    problem = ""
    if not largest <= limits.maximum:
        problem = f"largest difference {largest:.2g} > {limits.maximum:g}"
    elif not mean <= limits.mean:
        problem = f"mean difference {mean:.2g} > {limits.mean:g}"
    return _row(sample, problem, largest, mean, sample.sampled[diffs.index(largest)])


def failed(sample: Sample, problem: str) -> Row:
    """The row of a sample that cannot be compared at all."""
    return _row(sample, problem, None, None, None)


def _row(sample: Sample, problem: str, largest: float | None, mean: float | None, position: int | None) -> Row:
    return Row(
        rollout_id=sample.rollout_id,
        sample_id=sample.sample_id,
        tokens=len(sample.token_ids),
        sampled=len(sample.sampled),
        max_diff=largest,
        mean_diff=mean,
        position=position,
        problem=problem,
        versions=tuple(sample.versions),
    )


def malformed(sample: Sample) -> str:
    """Why a sample cannot be what training sees; empty when it can."""
    sampled = sample.sampled
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
