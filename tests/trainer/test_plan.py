from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.errors import UsageError
from trainer.evaluation import FIRST_SEED
from trainer.plan import evaluation_groups, training_groups

TASKS = ["a", "b", "c", "d", "e"]


@given(st.integers(1, 7), st.integers(0, 40), st.integers(0, 2**31))
def test_every_task_comes_once_before_any_comes_twice(size: int, count: int, seed: int) -> None:
    tasks = [f"t{number}" for number in range(size)]
    planned = [group.task for group in training_groups(tasks, {"react": 1}, count, seed)]
    assert len(planned) == count
    for start in range(0, count - size + 1, size):
        assert sorted(planned[start : start + size]) == tasks


@given(st.lists(st.floats(0.05, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_no_beginning_of_the_plan_is_a_group_away_from_the_mix(weights: list[float], seed: int) -> None:
    mix = {f"h{number}": weight for number, weight in enumerate(weights)}
    counts: Counter[str] = Counter()
    for number, group in enumerate(training_groups(TASKS, mix, 60, seed), 1):
        counts[group.harness] += 1
        for name, weight in mix.items():
            assert abs(counts[name] - number * weight / sum(weights)) < len(mix)


def test_a_mix_of_one_to_three_is_kept_in_every_four() -> None:
    planned = [group.harness for group in training_groups(TASKS, {"react": 1, "codex": 3}, 40, 0)]
    assert {tuple(sorted(Counter(planned[n : n + 4]).items())) for n in range(0, 40, 4)} == {
        (("codex", 3), ("react", 1))
    }


def test_a_harness_of_weight_0_is_left_out() -> None:
    assert {group.harness for group in training_groups(TASKS, {"react": 1, "codex": 0}, 20, 0)} == {"react"}


def test_tasks_and_harnesses_do_not_march_in_step() -> None:
    planned = training_groups(["a", "b"], {"react": 1, "codex": 1}, 40, 0)
    assert len({(group.task, group.harness) for group in planned}) == 4


def test_the_same_seed_is_the_same_plan_and_a_longer_one_goes_on_in_it() -> None:
    mix = {"react": 2, "codex": 1}
    plan = training_groups(TASKS, mix, 30, 7)
    assert training_groups(TASKS, mix, 30, 7) == plan
    assert training_groups(TASKS, mix, 50, 7)[:30] == plan
    assert training_groups(TASKS, mix, 30, 8) != plan


@given(st.integers(0, 2**31), st.integers(1, 20))
def test_no_start_files_of_an_evaluation_are_ever_trained_on(seed: int, samples: int) -> None:
    trained = {group.seed for group in training_groups(TASKS, {"react": 1}, 50, seed)}
    seen = {group.seed for group in evaluation_groups(TASKS, ["react"], samples, seed)}
    assert max(trained) < FIRST_SEED <= min(seen)


def test_an_evaluation_is_every_task_in_every_harness_from_its_own_start_files() -> None:
    groups = evaluation_groups(["a", "b"], ["react", "codex"], 3, 5)
    assert Counter((group.task, group.harness) for group in groups) == dict.fromkeys(
        [(task, harness) for task in "ab" for harness in ("react", "codex")], 3
    )
    assert {group.purpose for group in groups} == {"eval"}
    of_one = [group.seed for group in groups if (group.task, group.harness) == ("a", "react")]
    assert len(set(of_one)) == 3
    assert evaluation_groups(["a", "b"], ["react", "codex"], 3, 5) == groups


@pytest.mark.parametrize(("tasks", "mix"), [([], {"react": 1.0}), (["a"], {}), (["a"], {"react": 0.0})])
def test_a_plan_of_nothing_is_refused(tasks: list[str], mix: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="needs a task and a harness"):
        training_groups(tasks, mix, 4, 0)
