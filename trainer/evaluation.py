"""From graded rollouts to success, pass@k and pass^k, each with a 95 % interval; pure, and no torch.

What ended as an error of ours says nothing about the policy: it is left out and counted, never a 0. Does not know who
ran the rollouts, with which weights, nor where the numbers go.
"""

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, fmean

from openforge.errors import UsageError

FIRST_SEED = 1_000_000  # start files of an evaluation come from here on; training stays below, so it never saw them
SUCCESS = 1.0
LEVEL = 0.95
USUAL_KS = (1, 4, 8)
_DRAWS = 4000
_BOUNDS = ("low", "high")


@dataclass(frozen=True)
class Graded:
    """What one rollout was graded; `reward` None: nothing, since an error of ours ended it."""

    task: str
    harness: str
    reward: float | None


@dataclass(frozen=True)
class Estimate:
    """A share between 0 and 1 with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """What `n` graded rollouts of `tasks` tasks came to. `success` is None when nothing was graded; `pass_at` and
    `pass_hat` hold an estimate for each k."""

    tasks: int
    n: int
    successes: int
    errors: int
    success: Estimate | None
    pass_at: Mapping[int, Estimate]
    pass_hat: Mapping[int, Estimate]


@dataclass(frozen=True)
class Report:
    """Each harness alone, in the order of the rollouts, and all of them together."""

    harnesses: Mapping[str, Summary]
    overall: Summary


@dataclass(frozen=True)
class _Count:
    """One task in one harness: `successes` of `n` graded rollouts."""

    task: str
    harness: str
    n: int
    successes: int
    errors: int


_NONE = _Count("", "", 0, 0, 0)


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Chance that at least one of k rollouts succeeds, without bias: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021,
    arXiv 2107.03374). UsageError when k is not in 1..n."""
    _check_k(n, k)
    return 1 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(n: int, successes: int, k: int) -> float:
    """Chance that all of k rollouts succeed, without bias: C(c, k) / C(n, k) (pass^k of tau-bench, Yao et al. 2024,
    arXiv 2406.12045). UsageError when k is not in 1..n."""
    _check_k(n, k)
    return math.comb(successes, k) / math.comb(n, k)


def wilson(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share of independent trials; (0, 1) when there were none."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def task_intervals(
    columns: Sequence[Sequence[float]], *, seed: int = 0, level: float = LEVEL
) -> list[tuple[float, float]]:
    """Interval of the mean of each column of values in [0, 1], one value a task, for tasks like these.

    The Bayesian bootstrap over tasks (Rubin 1981) with half a task at 0 and half a task at 1 added: where every value
    is 0 or 1 it is Jeffreys' interval, and a few tasks that all agree do not look certain, as they do to a plain
    bootstrap. Equal seeds give equal intervals; (0, 1) for no values.
    """
    if not columns or not columns[0]:
        return [(0.0, 1.0) for _ in columns]
    chance = random.Random(seed)
    means: list[list[float]] = [[] for _ in columns]
    for _ in range(_DRAWS):
        at_0, at_1 = chance.gammavariate(0.5, 1), chance.gammavariate(0.5, 1)
        weights = [chance.expovariate(1) for _ in columns[0]]
        total = at_0 + at_1 + sum(weights)
        for values, drawn in zip(columns, means, strict=True):
            drawn.append(min(1.0, (at_1 + math.sumprod(weights, values)) / total))
    tail = round(_DRAWS * (1 - level) / 2)
    ends = [(fmean(values), sorted(drawn)) for values, drawn in zip(columns, means, strict=True)]
    return [(min(mean, drawn[tail]), max(mean, drawn[-1 - tail])) for mean, drawn in ends]


def check_plan(ks: Iterable[int], samples: int, harnesses: Collection[str]) -> None:
    """UsageError when rollouts like these could not be reported; to be asked before any is run."""
    for k in ks:
        if not 1 <= k <= samples:
            raise UsageError(
                f"k = {k} needs k rollouts of each task and harness, and there will be {samples}",
                hint=f"--samples {k}" if k > 0 else "k starts at 1",
            )
    if named := sorted(set(harnesses) & set(_BOUNDS)):
        raise UsageError(f"metrics of a harness called {named[0]!r} would look like bounds", hint="rename the harness")


def evaluate(
    graded: Iterable[Graded],
    ks: Sequence[int] | None = None,
    *,
    threshold: float = SUCCESS,
    seed: int = 0,
    leave_out: bool = False,
) -> Report:
    """Summaries of each harness and of all. A success is a reward of at least `threshold`.

    `success` pools rollouts (Wilson's interval: given these tasks, it is rather too wide); pass@k and pass^k are means
    over tasks, each task counting its harnesses alike, with `task_intervals`. UsageError when some task and harness has
    fewer than k graded rollouts; with `leave_out`, or the usual `ks` (None), that k is missing from the summaries it
    touches instead.
    """
    counts = _count(graded, threshold)
    leave_out = leave_out or ks is None
    if not counts and not leave_out:
        raise UsageError("there are no rollouts to evaluate", hint="openforge rollouts")
    names = list(dict.fromkeys(count.harness for count in counts))
    chosen = sorted(set(USUAL_KS if ks is None else ks))
    if chosen and chosen[0] < 1:
        raise UsageError(f"k = {chosen[0]}", hint="k starts at 1")

    def summarize(mine: list[_Count]) -> Summary:
        least = min(mine, key=lambda count: count.n, default=_NONE)
        short = [k for k in chosen if k > least.n]
        if short and not leave_out:
            raise UsageError(
                f"k = {short[-1]} needs {short[-1]} graded rollouts of each task and harness, and {least.task} "
                f"with {least.harness} has {least.n} ({least.errors} errors)",
                hint="run more samples, or ask for a smaller k",
            )
        return _summary(mine, [k for k in chosen if k not in short], seed)

    each = {name: summarize([count for count in counts if count.harness == name]) for name in names}
    return Report(each, summarize(counts))


def metrics(report: Report) -> dict[str, float]:
    """The report as numbers for the store: `eval.success`, `eval.success.HARNESS`, `eval.pass_at_4` … with `.low` and
    `.high`, and `eval.pass_at_k`, `eval.pass_hat_k` for the largest k (`eval.k`). What is not known is left out."""
    named: dict[str, Estimate] = {}
    for suffix, summary in {"": report.overall, **{f".{name}": one for name, one in report.harnesses.items()}}.items():
        if summary.success is not None:
            named[f"eval.success{suffix}"] = summary.success
        for kind, estimates in (("pass_at", summary.pass_at), ("pass_hat", summary.pass_hat)):
            named |= {f"eval.{kind}_{k}{suffix}": estimate for k, estimate in estimates.items()}
    numbers = {"eval.n": float(report.overall.n), "eval.errors": float(report.overall.errors)}
    if report.overall.pass_at:
        most = max(report.overall.pass_at)
        numbers["eval.k"] = float(most)
        named |= {"eval.pass_at_k": report.overall.pass_at[most], "eval.pass_hat_k": report.overall.pass_hat[most]}
    for name, estimate in named.items():
        numbers |= {name: estimate.value, f"{name}.low": estimate.low, f"{name}.high": estimate.high}
    return numbers


def _count(rollouts: Iterable[Graded], threshold: float) -> list[_Count]:
    """Successes by task and harness, in the order they first came. UsageError for a reward that is no number."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for rollout in rollouts:
        if rollout.reward is not None and not math.isfinite(rollout.reward):
            raise UsageError(f"a reward of {rollout.task} with {rollout.harness} is {rollout.reward}")
        found.setdefault((rollout.task, rollout.harness), []).append(rollout.reward)
    counts = []
    for (task, harness), rewards in found.items():
        known = [reward for reward in rewards if reward is not None]
        successes = sum(reward >= threshold for reward in known)
        counts.append(_Count(task, harness, len(known), successes, len(rewards) - len(known)))
    return counts


def _summary(counts: list[_Count], ks: Sequence[int], seed: int) -> Summary:
    n, successes = sum(count.n for count in counts), sum(count.successes for count in counts)
    by_task = [
        list(mine) for _, mine in groupby(sorted(counts, key=lambda count: count.task), lambda count: count.task)
    ]

    columns = [
        [fmean(of(count.n, count.successes, k) for count in mine) for mine in by_task]
        for of in (pass_at_k, pass_hat_k)
        for k in ks
    ]
    ends = task_intervals(columns, seed=seed)
    estimates = [Estimate(fmean(values), *end) for values, end in zip(columns, ends, strict=True)]
    return Summary(
        tasks=len(by_task),
        n=n,
        successes=successes,
        errors=sum(count.errors for count in counts),
        success=Estimate(successes / n, *wilson(successes, n)) if n else None,
        pass_at=dict(zip(ks, estimates[: len(ks)], strict=True)),
        pass_hat=dict(zip(ks, estimates[len(ks) :], strict=True)),
    )


def _check_k(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise UsageError(f"k = {k} of {n} graded rollouts", hint=f"k can be 1 to {n}" if n else "nothing was graded")
