from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.weights import row_weights

_ROLLOUTS = st.lists(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=2, max_size=4), min_size=1)
"""Groups of at least two rollouts; each rollout is the trained ids of its rows."""


def _rows(groups: list[list[list[int]]], padding: int = 0) -> tuple[list[str], list[int]]:
    rows = [
        (f"g{g}_{r}_{i}", tokens)
        for g, group in enumerate(groups)
        for r, rollout in enumerate(group)
        for i, tokens in enumerate(rollout)
    ]
    rows += [(f"padf00_{number}_0", 0) for number in range(padding)]
    return [key for key, _ in rows], [tokens for _, tokens in rows]


@given(_ROLLOUTS, st.integers(0, 3))
def test_r13_m14_m16_every_rollout_weighs_the_same_in_the_token_mean(
    groups: list[list[list[int]]], padding: int
) -> None:
    keys, tokens = _rows(groups, padding)
    weigh: dict[str, float] = defaultdict(float)
    for key, weight, count in zip(keys, row_weights(keys, tokens), tokens, strict=True):
        weigh[key.rsplit("_", 1)[0]] += weight * count / sum(tokens)
    real = [share for rollout, share in weigh.items() if not rollout.startswith("pad")]
    assert real == pytest.approx([1 / len(real)] * len(real))


@given(_ROLLOUTS, st.integers(1, 3))
def test_r01_padding_rows_weigh_nothing_and_change_no_other_weight(groups: list[list[list[int]]], padding: int) -> None:
    keys, tokens = _rows(groups)
    padded = row_weights(*_rows(groups, padding))
    assert padded[: len(keys)] == row_weights(keys, tokens)
    assert padded[len(keys) :] == [0.0] * padding


def test_rows_of_one_size_and_one_a_rollout_need_no_weights() -> None:
    assert row_weights(*_rows([[[7], [7]], [[7], [7]]])) == [1.0] * 4


def test_r11_the_lone_survivor_of_a_group_weighs_nothing_however_many_rows_it_has() -> None:
    keys = ["a_0_0", "a_1_0", "b_3_0", "b_3_1"]
    weights = row_weights(keys, [4, 4, 4, 4])
    assert weights[2:] == [0.0, 0.0]
    assert weights[0] == weights[1] > 0


def test_r11_a_rollout_whose_siblings_train_nothing_is_alone() -> None:
    assert row_weights(["a_0_0", "a_1_0", "a_2_0"], [4, 0, 0]) == [0.0, 0.0, 0.0]


def test_a_name_with_underscores_is_no_other_group() -> None:
    assert row_weights(["a_0_0_0", "a_0_1_0", "a_1_0"], [2, 2, 2])[2] == 0.0


def test_s11_a_batch_of_nothing_has_no_weights() -> None:
    assert row_weights([], []) == []
