import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.versions import Versions, step_of


def test_a_training_that_was_never_resumed_names_weights_by_their_step() -> None:
    assert [Versions().name(step) for step in (0, 4, 5)] == ["0", "4", "5"]


def test_weights_made_a_second_time_have_another_name() -> None:
    resumed = Versions(incarnation=1, from_step=4, from_version="4")
    assert [resumed.name(step) for step in (4, 5, 6)] == ["4", "5.1", "6.1"]


def test_what_a_training_was_resumed_from_keeps_its_name() -> None:
    assert Versions(incarnation=2, from_step=6, from_version="6.1").name(6) == "6.1"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=5))
def test_no_two_weights_of_a_run_share_a_name(starts: list[tuple[int, int]]) -> None:
    """Each start goes back by some steps, to a checkpoint, and makes some."""
    lineage, names, made = ["0"], {"0"}, 0
    for incarnation, (back, steps) in enumerate([(0, 3), *starts]):
        lineage = lineage[: max(1, len(lineage) - back)]
        begun = Versions(incarnation, len(lineage) - 1, lineage[-1])
        assert begun.name(len(lineage) - 1) == lineage[-1]
        lineage += [begun.name(len(lineage) + number) for number in range(steps)]
        names.update(lineage)
        made += steps
    assert len(names) == made + 1


def test_settings_of_a_training_that_was_not_resumed_may_lack_them() -> None:
    assert Versions.from_settings({"incarnation": 1, "from_step": 4}) == Versions(1, 4)
    assert Versions.from_settings({}) == Versions()


@pytest.mark.parametrize(("version", "step"), [("0", 0), ("7", 7), ("7.1", 7), ("12.3", 12)])
def test_the_step_of_a_version_is_what_stands_before_the_point(version: str, step: int) -> None:
    assert step_of(version) == step


@pytest.mark.parametrize("version", ["", "starter", "v7"])
def test_a_name_that_is_no_steps_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        step_of(version)
