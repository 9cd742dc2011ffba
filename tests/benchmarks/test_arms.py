from collections import Counter
from typing import Any

import pytest

from benchmarks.arms import Arm, comparison, history_lines, our_arm, round_of, their_arm
from benchmarks.training import rounds_of_groups
from openforge.errors import OpenForgeError
from trainer.evaluation import FIRST_SEED


def ours(seed: int, at: float = 0.0, reward: float | None = 1.0, **changed: Any) -> dict[str, Any]:
    states = [("queued", at), ("starting", at + 1), ("running", at + 2), ("grading", at + 8), ("done", at + 9)]
    row = {"task": "desk/a", "seed": FIRST_SEED + seed, "state": "done", "reward": reward, "states": states}
    return {**row, "model_s": 4.0, "calls": 3, "tokens": 60, **changed}


def theirs(seed: int, at: float = 0.0, error: str = "") -> dict[str, Any]:
    row = {"task": "desk/a", "seed": FIRST_SEED + seed, "asked": at, "started": at + 1, "ended": at + 5, "error": error}
    done = {"running": at + 2, "grading": at + 4, "reward": 1.0, "tokens": 60, "calls": 3, "model_s": 1.5}
    return row if error else {**row, **done}


def test_each_round_asks_both_loops_for_the_same_tasks_and_start_files_one_after_the_other() -> None:
    groups = rounds_of_groups(["desk/a", "desk/b"], rounds=2, samples=2)
    batches = [groups[start : start + 4] for start in range(0, len(groups), 4)]
    assert [batch[0].get("agent", "ours") for batch in batches] == ["verl", "ours", "ours", "verl", "verl", "ours"]
    for first, second in zip(batches[::2], batches[1::2], strict=True):
        asked = [[(group["task"], group["seed"]) for group in batch] for batch in (first, second)]
        assert asked[0] == asked[1]
        assert len({group.get("agent") for group in first}) == len({group.get("agent") for group in second}) == 1


def test_no_two_rounds_share_start_files_and_the_seed_tells_the_round() -> None:
    groups = rounds_of_groups(["desk/a"], rounds=3, samples=2)
    assert [round_of(group["seed"], 2) for group in groups] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_the_first_round_and_what_was_void_do_not_count() -> None:
    assert (len(our_arm([ours(0), ours(1), ours(2, reward=None)], 1).rollouts), 1) == (1, 1)
    assert our_arm([ours(0, reward=None), ours(2, reward=None)], 1).void == 1
    found = their_arm([theirs(0), theirs(1), theirs(2, error="gone")], 1)
    assert (len(found.rollouts), found.void) == (1, 1)


def test_a_rollout_is_split_into_parts_that_add_up_to_its_seconds() -> None:
    for arm in (our_arm([ours(1)], 1), their_arm([theirs(1)], 1)):
        (rollout,) = arm.rollouts
        assert sum(rollout.parts.values()) == rollout.seconds
    assert their_arm([theirs(1)], 1).rollouts[0].parts["tools and the rest"] == 0.5


def test_tokens_a_second_count_the_time_in_which_a_loop_was_at_work_and_not_the_other_ones_rounds() -> None:
    arm = our_arm([ours(1, at=0.0), ours(1, at=1.0), ours(2, at=1000.0)], 1)
    assert arm.tokens_per_s == 180 / (10 + 9)


def test_the_figures_are_ratios_with_their_number() -> None:
    lines = comparison(our_arm([ours(1)], 1), their_arm([theirs(1), theirs(2, error="x")], 1))
    assert "seconds a rollout, mean: recorded / veRL 2.00 x (8.0 / 4.0 s; n = 1 and 1, void 0 and 1)" in lines
    assert any(line.startswith("policy tokens a second: recorded / veRL 0.56 x") for line in lines)


def test_with_nothing_of_one_loop_there_is_nothing_to_compare() -> None:
    with pytest.raises(OpenForgeError, match="nothing to compare"):
        comparison(our_arm([ours(1)], 1), Arm([], 3))


def test_a_first_prompt_is_no_later_one() -> None:
    counts = Counter(prompts=10, conversations=4, verl=0, rendered=6, beyond=2, answers=10, parsed=1)
    assert history_lines(counts, 8, 0)[-1].split(": ")[1].startswith("6 of 6, 2 of them")
