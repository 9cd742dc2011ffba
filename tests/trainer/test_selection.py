"""Every rule that leaves a row or a rollout out, and that the account adds up."""

import random
from dataclasses import replace
from typing import Any

import pytest

from trainer.selection import ALL, TAKEN, Candidate, Outcome, Row, Rules, select

RULES = Rules(vocabs=frozenset({"v1"}), vocab_size=100, max_length=50)


def row(number: int, **changes: Any) -> Row:
    return Row(f"s{number}", length=10, highest_id=99, fingerprint=number, vocab="v1")._replace(**changes)


def rollout(sample: int, task: str = "t", harness: str = "pi", **changes: Any) -> Candidate:
    name = f"r1.{task}.{harness}.{sample}"
    plain = Candidate("r1", name, task, harness, "done", 1.0, calls=2, rows=(row(hash(name)),))
    return replace(plain, **changes)


def account(*candidates: Candidate, rules: Rules = RULES) -> dict[str, tuple[int, int]]:
    """Outcome to (rollouts, rows), without the sums, which are checked here."""
    *lines, total = select(candidates, rules).outcomes
    assert total == Outcome(ALL, len(candidates), sum(len(one.rows) + len(one.refused) for one in candidates))
    assert (sum(line.rollouts for line in lines), sum(line.rows for line in lines)) == total[1:]
    return {line.outcome: (line.rollouts, line.rows) for line in lines}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wanted": False}, "not chosen by the SQL"),
        ({"state": "running"}, "still running"),
        ({"state": "error", "reward": None}, "ended as error"),
        ({"state": "cancelled", "reward": None}, "ended as cancelled"),
        ({"reward": None}, "not graded"),
        ({"reward": 0.5}, "reward below 1"),
        ({"rows": (), "calls": 0}, "no model call"),
        ({"rows": (), "has_ids": False}, "recorded without a tokenizer"),
        ({"rows": ()}, "no training row"),
        ({"rows": (row(1, wanted=False),)}, "not chosen by the SQL"),
        ({"rows": (row(1, vocab="v2"),)}, "recorded with another tokenizer"),
        ({"rows": (row(1, vocab=None),)}, "its tokenizer is not in the store"),
        ({"rows": (row(1, highest_id=100),)}, "ids that the model does not have"),
        ({"rows": (row(1, length=51),)}, "longer than 50 tokens"),
    ],
)
def test_what_is_left_out_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    candidate = rollout(0, **changes)
    assert account(candidate, rollout(1)) == {TAKEN: (1, 1), reason: (1, len(candidate.rows))}


def test_a_failed_rollout_with_a_reward_is_taken_when_the_reward_is_enough() -> None:
    assert account(rollout(0, state="failed", reward=0.5), rules=replace(RULES, min_reward=0.5)) == {TAKEN: (1, 1)}


def test_the_first_reason_counts() -> None:
    assert account(rollout(0, wanted=False, reward=0.0)) == {TAKEN: (0, 0), "not chosen by the SQL": (1, 1)}


def test_a_path_without_a_row_is_counted_beside_the_rollout_that_is_taken() -> None:
    found = account(rollout(0, refused=("auxiliary", "bad_logprob")))
    assert found == {TAKEN: (1, 1), "side call, never taught": (0, 1), "no exact row: bad_logprob": (0, 1)}


def test_a_rollout_whose_paths_were_all_refused_has_their_reason_and_not_the_side_calls() -> None:
    found = account(rollout(0, rows=(), refused=("bad_logprob", "auxiliary")))
    assert found == {TAKEN: (0, 0), "no exact row: bad_logprob": (1, 1), "side call, never taught": (0, 1)}


def test_a_rollout_keeps_its_good_rows_when_another_is_left_out() -> None:
    found = account(rollout(0, rows=(row(1, length=60), row(2))))
    assert found == {TAKEN: (1, 1), "longer than 50 tokens": (0, 1)}


def test_a_rollout_without_a_good_row_has_the_reason_of_its_main_one() -> None:
    found = account(rollout(0, rows=(row(1, length=60), row(2, vocab="v2"))))
    assert found == {TAKEN: (0, 0), "longer than 50 tokens": (0, 1), "recorded with another tokenizer": (1, 1)}


def test_equal_rows_are_taught_once_and_do_not_use_up_the_cap() -> None:
    same = [rollout(sample, rows=(row(7),)) for sample in range(3)]
    found = account(*same, rollout(3), rules=replace(RULES, per_task=2))
    assert found == {TAKEN: (2, 2), "the same as another row": (2, 2)}


def test_the_cap_counts_rollouts_of_a_task() -> None:
    rollouts = [rollout(sample, task) for task in ("a", "b") for sample in range(5)]
    assert account(*rollouts, rules=replace(RULES, per_task=3)) == {TAKEN: (6, 6), "more than 3 of its task": (4, 4)}


def test_the_cap_is_fair_over_the_harnesses_of_a_task() -> None:
    rollouts = [rollout(sample, "t", "pi") for sample in range(20)] + [rollout(s, "t", "codex") for s in range(3)]
    taken = select(rollouts, replace(RULES, per_task=8)).lessons
    assert sorted(lesson.candidate.harness for lesson in taken) == ["codex"] * 3 + ["pi"] * 5


def test_a_cap_of_one_is_fair_over_tasks() -> None:
    rollouts = [
        rollout(sample, f"t{task}", harness)
        for task in range(9)
        for harness in ("codex", "pi", "react")
        for sample in range(2)
    ]
    taken = select(rollouts, replace(RULES, per_task=1)).lessons
    assert sorted(lesson.candidate.harness for lesson in taken) == ["codex"] * 3 + ["pi"] * 3 + ["react"] * 3


def test_the_seed_alone_decides_what_the_cap_takes() -> None:
    rollouts = [rollout(sample, f"t{task}", harness) for task in range(4) for harness in "ab" for sample in range(9)]
    mixed = random.Random(1).sample(rollouts, len(rollouts))
    rules = replace(RULES, per_task=3)
    assert select(rollouts, rules) == select(mixed, rules)
    assert select(rollouts, rules) != select(rollouts, replace(rules, seed=1))
