"""Estimates from graded rollouts: against values worked out by hand or published, and at their edges."""

import itertools
import math
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from openforge.errors import UsageError
from trainer.evaluation import (
    Graded,
    check_plan,
    evaluate,
    metrics,
    pass_at_k,
    pass_hat_k,
    task_intervals,
    wilson,
)

ROOT = Path(__file__).parents[2]


def graded(task: str, harness: str, *rewards: float | None) -> list[Graded]:
    return [Graded(task, harness, reward) for reward in rewards]


@pytest.mark.parametrize(
    ("n", "successes", "k", "at", "hat"),
    [
        (5, 2, 3, 9 / 10, 0.0),  # 1 - C(3,3)/C(5,3); two successes cannot fill three places
        (5, 3, 2, 9 / 10, 3 / 10),  # 1 - C(2,2)/C(5,2); C(3,2)/C(5,2)
        (8, 6, 1, 6 / 8, 6 / 8),  # both are the plain share at k = 1
        (4, 1, 4, 1.0, 0.0),  # k = n: whether any, whether all
        (4, 4, 4, 1.0, 1.0),
        (8, 0, 4, 0.0, 0.0),
        (8, 8, 4, 1.0, 1.0),
        (1, 1, 1, 1.0, 1.0),
        (100_000, 1, 10, 10 / 100_000, 0.0),  # binomials of large n are exact, and their quotient too
    ],
)
def test_pass_at_k_and_pass_hat_k_by_hand(n: int, successes: int, k: int, at: float, hat: float) -> None:
    assert pass_at_k(n, successes, k) == pytest.approx(at, rel=1e-9)
    assert pass_hat_k(n, successes, k) == pytest.approx(hat)


@pytest.mark.parametrize("successes", range(7))
def test_both_are_what_drawing_k_of_the_n_rollouts_gives_on_average(successes: int) -> None:
    rollouts = [True] * successes + [False] * (6 - successes)
    draws = list(itertools.combinations(rollouts, 4))
    assert pass_at_k(6, successes, 4) == pytest.approx(fmean(map(any, draws)))
    assert pass_hat_k(6, successes, 4) == pytest.approx(fmean(map(all, draws)))


@pytest.mark.parametrize("k", [0, -1, 4])
@pytest.mark.parametrize("estimator", [pass_at_k, pass_hat_k])
def test_a_k_that_the_rollouts_cannot_bear_is_refused(estimator: object, k: int) -> None:
    with pytest.raises(UsageError, match=f"k = {k} of 3"):
        estimator(3, 2, k)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 1 - 0.1611, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilsons_interval_is_the_published_one(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def jeffreys(successes: int, n: int, share: float) -> float:
    """The quantile of Beta(c + 1/2, n - c + 1/2), by adding up its density; p = sin² makes it smooth."""
    steps = 200_000
    angles = [(step + 0.5) / steps * math.pi / 2 for step in range(steps)]
    density = [math.sin(a) ** (2 * successes) * math.cos(a) ** (2 * (n - successes)) for a in angles]
    wanted, total = share * sum(density), 0.0
    for angle, part in zip(angles, density, strict=True):
        total += part
        if total >= wanted:
            return math.sin(angle) ** 2
    raise AssertionError("unreachable")


@pytest.mark.parametrize(("successes", "n"), [(5, 10), (2, 12), (11, 12), (1, 1)])
def test_the_interval_over_tasks_that_all_pass_or_fail_is_jeffreys(successes: int, n: int) -> None:
    [(low, high)] = task_intervals([[1.0] * successes + [0.0] * (n - successes)])
    assert low == pytest.approx(jeffreys(successes, n, 0.025), abs=0.02)
    assert high == pytest.approx(1.0 if successes == n else jeffreys(successes, n, 0.975), abs=0.02)


def test_tasks_that_all_agree_do_not_look_certain() -> None:
    [(few, _)], [(many, _)] = task_intervals([[1.0] * 12]), task_intervals([[1.0] * 100])
    assert few < 0.9 < many < 1.0
    [(low, high)] = task_intervals([[0.5]])
    assert low < 0.1
    assert high > 0.9


def test_an_interval_over_tasks_holds_its_mean_and_repeats_with_its_seed() -> None:
    values = [0.1, 0.4, 0.9, 1.0]
    [(low, high)] = task_intervals([values], seed=3)
    assert 0 <= low < fmean(values) < high <= 1
    assert [(low, high)] == task_intervals([values], seed=3) != task_intervals([values], seed=4)
    for edge in ([], [0.0], [1.0] * 3):
        [(low, high)] = task_intervals([edge])
        assert 0 <= low <= (fmean(edge) if edge else 0) <= high <= 1


def test_success_pools_rollouts_and_pass_at_k_averages_over_tasks() -> None:
    report = evaluate([*graded("a", "react", 1, 1, 0, 0), *graded("b", "react", 0, 0)], [1, 2])
    row = report.harnesses["react"]
    assert (row.tasks, row.n, row.successes, row.errors) == (2, 6, 2, 0)
    assert row.success is not None
    assert row.success.value == pytest.approx(2 / 6)
    assert (row.success.low, row.success.high) == wilson(2, 6)
    assert row.pass_at[1].value == pytest.approx((2 / 4 + 0) / 2)
    assert row.pass_at[2].value == pytest.approx((1 - 1 / 6 + 0) / 2)
    assert row.pass_hat[2].value == pytest.approx((1 / 6 + 0) / 2)
    assert report.overall == row


def test_each_harness_has_its_own_row_and_a_task_counts_its_harnesses_alike() -> None:
    report = evaluate([*graded("a", "pi", 1, 1), *graded("a", "react", 0, 0, 0, 0), *graded("b", "react", 1)])
    assert list(report.harnesses) == ["pi", "react"]
    assert report.harnesses["pi"].pass_at[1].value == 1
    assert report.harnesses["react"].pass_at[1].value == pytest.approx((0 + 1) / 2)
    assert report.overall.pass_at[1].value == pytest.approx(((1 + 0) / 2 + 1) / 2)
    assert (report.overall.n, report.overall.successes, report.overall.tasks) == (7, 3, 2)


def test_the_order_in_which_rollouts_ended_changes_nothing() -> None:
    rollouts = [*graded("a", "react", 1, 0), *graded("b", "react", 1, 1), *graded("c", "react", 0, 0)]
    assert evaluate(rollouts, [1, 2]) == evaluate(rollouts[::-1], [1, 2])


def test_an_error_of_ours_is_counted_and_never_a_zero() -> None:
    row = evaluate(graded("a", "react", 1, None, 1, None)).overall
    assert (row.n, row.successes, row.errors) == (2, 2, 2)
    assert row.success is not None
    assert row.success.value == row.pass_at[1].value == 1


def test_a_success_is_a_reward_of_one_or_what_the_caller_says() -> None:
    rollouts = graded("a", "react", 0.5, 0.999, 1.0, 1.5)
    assert evaluate(rollouts).overall.successes == 2
    assert evaluate(rollouts, threshold=0.5).overall.successes == 4


def test_k_above_the_smallest_n_is_an_error_that_names_it() -> None:
    rollouts = [*graded("a", "react", 1, 1, 1), *graded("b", "react", 1, None, 1)]
    with pytest.raises(UsageError, match=r"k = 3 needs 3 graded rollouts .* b with react has 2 \(1 errors\)"):
        evaluate(rollouts, [1, 2, 3])


def test_a_k_that_errors_made_too_large_can_be_left_out_where_it_is_and_not_elsewhere() -> None:
    rollouts = [*graded("a", "react", 1, None), *graded("a", "pi", 1, 0), *graded("a", "codex", None, None)]
    report = evaluate(rollouts, [1, 2], leave_out=True)
    assert {name: list(row.pass_at) for name, row in report.harnesses.items()} == {
        "react": [1],
        "pi": [1, 2],
        "codex": [],
    }
    assert list(report.overall.pass_hat) == []
    assert report.harnesses["codex"].success is None
    assert report.overall.success is not None
    assert report.overall.success.value == pytest.approx(2 / 3)


def test_nothing_to_evaluate_is_said_and_can_be_an_empty_report() -> None:
    with pytest.raises(UsageError, match="no rollouts"):
        evaluate([], [1])
    report = evaluate([], [1, 4], leave_out=True)
    assert (report.harnesses, report.overall.n, report.overall.success) == ({}, 0, None)
    assert metrics(report) == {"eval.n": 0, "eval.errors": 0}
    with pytest.raises(UsageError, match="k = 0"):
        evaluate([], [0, 1], leave_out=True)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match="a with react is nan"):
        evaluate(graded("a", "react", math.nan))


def test_metrics_have_the_names_that_others_rely_on() -> None:
    report = evaluate([*graded("a", "react", 1, 0, None), *graded("a", "pi", 1, 1)], [1, 2])
    numbers = metrics(report)
    bounded = ["eval.success", "eval.success.react", "eval.success.pi", "eval.pass_at_k", "eval.pass_hat_k"]
    bounded += [f"eval.pass_{kind}_{k}{end}" for kind in ("at", "hat") for k in (1, 2) for end in ("", ".react", ".pi")]
    every = {f"{name}{end}" for name in bounded for end in ("", ".low", ".high")}
    assert set(numbers) == every | {"eval.n", "eval.errors", "eval.k"}
    assert all(type(value) is float and math.isfinite(value) for value in numbers.values())
    assert all(numbers[f"{name}.low"] <= numbers[name] <= numbers[f"{name}.high"] for name in bounded)
    assert (numbers["eval.n"], numbers["eval.errors"], numbers["eval.k"]) == (4, 1, 2)
    assert numbers["eval.success"] == pytest.approx(3 / 4)
    assert numbers["eval.pass_hat_k"] == numbers["eval.pass_hat_2"] == pytest.approx((0 + 1) / 2)


def test_when_nobody_says_k_it_is_1_4_and_8_as_far_as_the_rollouts_bear_them() -> None:
    assert list(evaluate(graded("a", "react", *[1.0] * 9)).overall.pass_at) == [1, 4, 8]
    report = evaluate([*graded("a", "react", *[1.0] * 8), *graded("a", "pi", *[1.0] * 7, None)])
    assert {name: list(row.pass_hat) for name, row in report.harnesses.items()} == {"react": [1, 4, 8], "pi": [1, 4]}
    assert metrics(report)["eval.k"] == 4
    assert evaluate([]).overall.n == 0


@pytest.mark.parametrize(
    ("ks", "harnesses", "says"),
    [((1, 8), ("react",), "k = 8 needs"), ((0,), ("react",), "k = 0"), ((1,), ("react", "low"), "'low'")],
)
def test_what_could_not_be_reported_is_refused_beforehand(
    ks: tuple[int, ...], harnesses: tuple[str, ...], says: str
) -> None:
    check_plan((1, 4), 4, ("react", "pi"))
    with pytest.raises(UsageError, match=says):
        check_plan(ks, 4, harnesses)


def test_no_torch_is_loaded() -> None:
    code = "import sys, trainer.evaluation; sys.exit(any(name in sys.modules for name in ('torch', 'verl', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
