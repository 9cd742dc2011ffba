"""The life of an attempt as data."""

import pytest

from cluster.states import AGENT, MOVES, RETRIED, ErrorClass, IllegalMove, State, check_move, is_terminal

TERMINAL = (State.DONE, State.FAILED, State.ERROR, State.CANCELLED)


@pytest.mark.parametrize("first", TERMINAL)
@pytest.mark.parametrize("late", list(State))
def test_d07_terminal_states_stay_terminal(first: State, late: State) -> None:
    assert is_terminal(first)
    with pytest.raises(IllegalMove):
        check_move(first, late)


def test_every_live_state_can_end_as_error_or_cancelled() -> None:
    for state in State:
        if not is_terminal(state):
            assert {State.ERROR, State.CANCELLED} <= MOVES[state]


def test_a_reward_needs_grading_first() -> None:
    for state in (State.QUEUED, State.STARTING, State.RUNNING):
        for graded in (State.DONE, State.FAILED):
            with pytest.raises(IllegalMove):
                check_move(state, graded)


def test_what_the_agent_did_is_never_tried_again() -> None:
    assert not AGENT & RETRIED
    assert {ErrorClass.RECORDER, ErrorClass.SANDBOX, ErrorClass.GRADER, ErrorClass.POLICY} <= RETRIED
