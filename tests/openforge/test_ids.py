"""Names sort by time, split back into their parts, and are found by what a person types."""

import pytest

from openforge import ids
from openforge.errors import UsageError


def test_run_ids_sort_by_time() -> None:
    times = [0.0, 1.0, 1e9, 1.8e9, 1.8e9 + 1, 4e9]
    made = [ids.new_run_id(at) for at in times]
    assert made == sorted(made)
    assert len({len(run) for run in made}) == 1


def test_ids_do_not_repeat() -> None:
    assert len({ids.new_call_id() for _ in range(2000)}) == 2000
    assert len({ids.new_recorder_id("recorder") for _ in range(50)}) == 50


def test_a_rollout_id_says_what_it_is() -> None:
    rollout = ids.rollout_id(ids.RunId("r1"), "count-lines", "pi", 12)
    assert rollout == "r1.count-lines.pi.12"
    assert ids.split_rollout_id(rollout) == ("r1", "count-lines", "pi", 12)


@pytest.mark.parametrize("name", ["", "A", "a.b", "a/b", "-a", "ä", "a b"])
def test_a_name_that_would_not_survive_a_url_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        ids.rollout_id(ids.RunId("r1"), name, "pi", 0)
    with pytest.raises(UsageError):
        ids.rollout_id(ids.RunId("r1"), "task", name, 0)


@pytest.mark.parametrize("text", ["", "r1", "r1.a.b", "r1.a.b.x", "r1.a.b.0.1", "r1.a.b.-1"])
def test_what_is_no_rollout_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        ids.split_rollout_id(text)


def test_a_run_is_found_by_id_prefix_and_latest() -> None:
    runs = ["r2b", "r1", "r2a", "r2"]
    assert ids.resolve_run("latest", runs) == "r2b"
    with pytest.raises(UsageError, match="no run is called ''"):
        ids.resolve_run("", ["r1"])  # an unset variable in a script names no run, however few there are
    assert ids.resolve_run("r2a", runs) == "r2a"
    assert ids.resolve_run("r2", runs) == "r2"  # an exact id wins over longer ones
    assert ids.resolve_run("r1", iter(runs)) == "r1"


@pytest.mark.parametrize(
    ("text", "runs", "says"), [("latest", [], "no runs"), ("r", ["r1", "r2"], "could be"), ("x", ["r1"], "no run")]
)
def test_a_run_that_cannot_be_meant_says_what_to_type(text: str, runs: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        ids.resolve_run(text, runs)
    assert caught.value.hint


def test_what_an_id_names_is_told_by_its_form() -> None:
    run = ids.new_run_id()
    assert ids.kind_of_id(run) == "run"
    assert ids.kind_of_id(ids.rollout_id(run, "fix-mean", "react", 3)) == "rollout"
    assert ids.kind_of_id(ids.new_call_id()) == "call"
    for text in ("", "run", "rollouts", "codex", "a.b.c.0", f"{run}.t.h.x", run.upper(), f"{run} ", "c" * 16):
        assert ids.kind_of_id(text) is None, text
