import pytest
from synthetic import SyntheticRun

from openforge.errors import UsageError
from openforge.store.transcript import find_rollout, read_transcript


@pytest.fixture
def run(make_run) -> SyntheticRun:
    made: SyntheticRun = make_run()
    made.rollout(turns=3)
    made.rollout(harness="pi", turns=1)
    return made


def test_turns_come_in_order_with_what_each_added(run: SyntheticRun) -> None:
    found = read_transcript(run.store_root, f"{run.run_id}.t.react.0")
    assert [turn.number for turn in found.turns] == [1, 2, 3]
    assert [turn.call["break_reason"] for turn in found.turns] == ["root", "append", "append"]
    assert [message["position"] for turn in found.turns for message in turn.messages] == list(range(6))
    assert all(turn.tokens == [] for turn in found.turns)
    assert found.samples[0]["trained"] == 90
    assert found.grades[0]["reward"] == 1.0


def test_one_turn_with_its_tokens(run: SyntheticRun) -> None:
    found = read_transcript(run.store_root, f"{run.run_id}.t.react.0", turn=2, tokens=True)
    (turn,) = found.turns
    assert len(turn.tokens) == 80
    assert sum(token["sampled"] for token in turn.tokens) == 30
    with pytest.raises(UsageError, match="no turn 4"):
        read_transcript(run.store_root, f"{run.run_id}.t.react.0", turn=4)


def test_an_earlier_attempt_can_be_read(run: SyntheticRun) -> None:
    rollout = f"{run.run_id}.t.react.0"
    run.state(rollout, "running", 1)  # type: ignore[arg-type]
    assert read_transcript(run.store_root, rollout).rollout["attempt"] == 1
    assert read_transcript(run.store_root, rollout).turns == []
    assert len(read_transcript(run.store_root, rollout, attempt=0).turns) == 3
    with pytest.raises(UsageError, match="no attempt 2"):
        read_transcript(run.store_root, rollout, attempt=2)


@pytest.mark.parametrize("text", ["latest.t.pi", "r0000000aaa.t.pi.0", "r.t.p", "latest.t.pi.0"])
def test_enough_of_an_id_is_enough(run: SyntheticRun, text: str) -> None:
    assert find_rollout(run.store_root, text) == (run.run_id, f"{run.run_id}.t.pi.0")


def test_an_id_that_is_none_or_several_says_what_to_type(run: SyntheticRun) -> None:
    with pytest.raises(UsageError, match="could be"):
        find_rollout(run.store_root, "latest.t")
    with pytest.raises(UsageError) as caught:
        find_rollout(run.store_root, "latest.t.pii.0")
    assert "did you mean r0000000aaa.t.pi.0" in caught.value.hint
