from pathlib import Path

import pytest

from benchmarks.step_time import counted, print_step_time, rollout_time, state_seconds, step_time
from openforge.errors import UsageError
from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter


def metric(step: int, name: str, value: float) -> dict[str, object]:
    return {"step": step, "name": f"train.{name}", "value": value}


ROWS = [
    *(metric(1, name, 100.0) for name in ("step_s", "time_s.gen")),
    *(metric(2, name, value) for name, value in (("step_s", 10.0), ("time_s.gen", 6.0), ("time_s.update", 3.0))),
    *(metric(3, name, value) for name, value in (("step_s", 12.0), ("time_s.gen", 8.0), ("time_s.update", 3.0))),
]


def state(rollout: str, name: str, ts: float, step: int = 1) -> dict[str, object]:
    return {"step": step, "rollout_id": rollout, "state": name, "ts": ts}


def test_the_first_step_warms_up_and_does_not_count() -> None:
    assert counted([3, 1, 2, 2]) == [2, 3]
    assert step_time(ROWS).phases["gen"] == 7.0


def test_a_run_of_one_step_has_only_that_one() -> None:
    assert step_time(ROWS[:2]).phases["gen"] == 100.0


def test_what_no_phase_explains_is_rest_and_an_evaluation_comes_on_top() -> None:
    found = step_time([*ROWS, metric(3, "time_s.eval", 4.0), metric(1, "time_s.eval", 50.0)])
    assert (found.rest, found.evaluation) == (1.0, 2.0)
    assert found.whole == 7.0 + 3.0 + 1.0 + 2.0


def test_a_run_that_trained_nothing_is_said() -> None:
    with pytest.raises(UsageError, match="no training step"):
        step_time([])


def test_seconds_in_a_state_end_where_the_next_begins() -> None:
    rows = [state("a", name, ts) for name, ts in (("queued", 1), ("starting", 3), ("running", 4), ("grading", 9))]
    spent = state_seconds([*rows, state("a", "done", 9.5), state("b", "queued", 0.0)])
    assert spent["a"] == {"queued": 2, "starting": 1, "running": 5, "grading": 0.5}
    assert sum(spent["b"].values()) == 0


def test_a_rollout_without_a_call_counts_as_none() -> None:
    states = [state("a", "running", 1.0), state("b", "running", 1.0)]
    found = rollout_time(states, [{"rollout_id": "a", "seconds": 3.0, "calls": 2, "tokens": None}])
    assert (found.rollouts, found.model_s, found.calls, found.tokens) == (2, 1.5, 1.0, 0.0)


def test_a_real_store_gives_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunId("r0000000aaa")
    journal = JournalWriter(tmp_path / "runs" / run, RecorderId("orchestrator-a"), run)
    journal.append("train.start", from_step=0, incarnation=0)
    for step in (1, 2):
        rollout = f"{run}.desk-a.react.{step}"
        for name in ("queued", "starting", "running", "grading", "done"):
            told = {"purpose": "train", "step": step} if name == "queued" else {}
            journal.append("rollout.state", rollout_id=rollout, attempt=0, state=name, **told)
        names = {"weight_version": str(step), "rollouts": [rollout]}
        journal.append("train.step", step=step, incarnation=0, samples=1, **names)
        for name, value in (("train.step_s", 4.0), ("train.time_s.gen", 3.0)):
            journal.append("metric", step=step, name=name, value=value, incarnation=0)
    journal.close()
    print_step_time(tmp_path, "latest")
    told = capsys.readouterr().out
    assert "mean of 1 steps" in told
    assert "gen           3.00   75.0%" in told
    assert "mean of 1 that were trained" in told
