"""Which rollout a request means: by key, by number, and after the run was taken up again."""

from dataclasses import replace

import pytest

from cluster.attempt import RolloutSpec
from cluster.rollout import Account, Rollout, account_of
from cluster.roster import ConflictError, Roster
from cluster.states import State
from openforge.errors import UsageError
from openforge.harness import load_harness
from openforge.ids import RolloutId, RunId
from openforge.task import Task, load_tasks

[TASK], [OTHER] = load_tasks(["desk/count-lines"]), load_tasks(["desk/fix-mean"])
REACT, PI = load_harness("react"), load_harness("pi")
NAME = RolloutId("r1.count-lines.react.0")


@pytest.fixture
def roster() -> Roster:
    return Roster(RunId("r1"), seed=100)


def end(rollout: Rollout, state: State) -> None:
    rollout.state = state
    rollout.finished.set()


def left(state: str, **known: object) -> Account:
    """What an earlier orchestrator left of the rollout NAME."""
    made = Account(NAME, state, finished=True, attempt=2, task=TASK.ref, harness="react", sample=0, seed=7)
    return replace(made, **known)


def test_without_a_sample_the_numbers_count_up_for_each_task_and_harness(roster: Roster) -> None:
    specs = []
    for task, harness in ((TASK, REACT), (TASK, REACT), (OTHER, REACT), (TASK, PI), (TASK, REACT)):
        specs.append(roster.spec(task, harness))
        roster.admit(specs[-1])
    assert [spec.sample for spec in specs] == [0, 1, 0, 0, 2]
    assert [spec.seed for spec in specs] == [100, 101, 100, 100, 102]


def test_a_number_that_was_asked_for_is_not_given_again(roster: Roster) -> None:
    roster.admit(roster.spec(TASK, REACT, sample=4))
    assert roster.spec(TASK, REACT).sample == 5


def test_tasks_of_two_sets_with_one_name_never_get_the_same_rollout(roster: Roster) -> None:
    twin = replace(TASK, set_name="other")
    first, _ = roster.admit(roster.spec(TASK, REACT))
    second, _ = roster.admit(roster.spec(twin, REACT))
    assert first.id != second.id
    assert (first.spec.task.ref, second.spec.task.ref) == ("desk/count-lines", "other/count-lines")


def test_the_same_key_twice_is_one_rollout(roster: Roster) -> None:
    first = roster.admit(roster.spec(TASK, REACT, key="k", purpose="train", step=3, group="g"))
    second = roster.admit(roster.spec(TASK, REACT, key="k", purpose="train", step=3, group="g"))
    assert (first[1], second[1]) == (True, False)
    assert first[0] is second[0]
    told = account_of(first[0])
    assert (told.purpose, told.step, told.group, told.key) == ("train", 3, "g", "k")


@pytest.mark.parametrize(("task", "harness", "sample"), [(OTHER, REACT, None), (TASK, PI, None), (TASK, REACT, 1)])
def test_a_key_that_is_another_rollouts_is_refused(
    roster: Roster, task: Task, harness: object, sample: int | None
) -> None:
    roster.admit(roster.spec(TASK, REACT, key="k"))
    with pytest.raises(ConflictError, match=r"key 'k' is that of r1\.count-lines\.react\.0"):
        roster.spec(task, harness, key="k", sample=sample)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [State.CANCELLED, State.ERROR])
def test_what_ended_without_a_grade_gets_a_new_attempt_when_it_is_asked_for_again(roster: Roster, state: State) -> None:
    first, _ = roster.admit(roster.spec(TASK, REACT, key="k", seed=9))
    end(first, state)
    again, queued = roster.admit(roster.spec(TASK, REACT, key="k"))
    assert queued
    assert (again.id, again.attempt, again.first_attempt, again.state) == (first.id, 1, 1, State.QUEUED)
    assert again.spec.seed == 9
    assert not again.finished.is_set()


@pytest.mark.parametrize("state", [State.DONE, State.FAILED])
def test_what_was_graded_is_not_run_again(roster: Roster, state: State) -> None:
    first, _ = roster.admit(roster.spec(TASK, REACT, key="k"))
    end(first, state)
    assert roster.admit(roster.spec(TASK, REACT, key="k")) == (first, False)


def test_an_error_whose_next_attempt_is_to_come_is_not_begun_again(roster: Roster) -> None:
    first, _ = roster.admit(roster.spec(TASK, REACT, key="k"))
    first.state = State.ERROR  # not finished: it waits for its next attempt
    assert roster.admit(roster.spec(TASK, REACT, key="k")) == (first, False)


def test_after_a_restart_numbers_go_on_and_a_key_finds_its_rollout(roster: Roster) -> None:
    roster.restore({NAME: left("done", reward=0.5, key="k", invalid_calls=2)})
    assert roster.spec(TASK, REACT).sample == 1
    rollout, queued = roster.admit(roster.spec(TASK, REACT, key="k"))
    assert not queued
    assert (rollout.id, rollout.reward, rollout.finished.is_set(), rollout.attempt) == (NAME, 0.5, True, 2)
    assert account_of(rollout).invalid_calls == 2
    assert [account.rollout_id for account in roster.accounts()] == [NAME]


@pytest.mark.parametrize("state", ["lost", "cancelled", "error"])
def test_after_a_restart_what_was_not_graded_begins_with_a_new_attempt(roster: Roster, state: str) -> None:
    roster.restore({NAME: left(state, key="k")})
    assert roster.find(NAME).state == state
    rollout, queued = roster.admit(roster.spec(TASK, REACT, key="k"))
    assert queued
    assert (rollout.id, rollout.attempt, rollout.spec.seed) == (NAME, 3, 7)


def test_after_a_restart_the_same_sample_is_the_same_rollout_without_a_key_too(roster: Roster) -> None:
    roster.restore({NAME: left("done", reward=1.0)})
    rollout, queued = roster.admit(RolloutSpec(TASK, REACT, 0, 7))
    assert (queued, rollout.reward) == (False, 1.0)


def test_a_rollout_that_there_is_not_is_an_error(roster: Roster) -> None:
    with pytest.raises(UsageError, match=r"no rollout 'r1\.x\.y\.0' in run r1"):
        roster.find("r1.x.y.0")
