"""Following a training run; what the views say of the same files is the truth."""

from pathlib import Path

import pytest
from synthetic import SyntheticRun
from synthetic_training import SyntheticTraining

from openforge.ids import rollout_id
from openforge.store.connect import query
from openforge.store.training import TrainingLog, TrainingRuns


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path


def viewed(store: Path, run_id: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for row in query(store, "SELECT name, step, value FROM metrics ORDER BY step", runs=[run_id]):
        found.setdefault(row["name"], {})[row["step"]] = row["value"]
    return found


def followed(log: TrainingLog) -> dict[str, dict[int, float]]:
    curves = log.look().curves
    told = {name: dict(zip(curve.steps, curve.values, strict=True)) for name, curve in curves.items()}
    return {name: values for name, values in told.items() if not name.startswith("rollouts.")}


def test_what_is_followed_is_what_the_views_say(store: Path) -> None:
    run = SyntheticTraining(store, samples=2)
    log = TrainingLog(store, run.run_id)
    run.train(4)
    assert followed(log) == viewed(store, run.run_id)
    run.started(1, 2)  # it died behind the checkpoint of step 2, and makes steps 3 and 4 again
    assert followed(log) == viewed(store, run.run_id)
    assert log.look().last_step == 2, "its rollouts are void, too"
    run.step()
    assert log.look().last_step == 3
    assert len(log.step(3).groups[0].rollouts) == 2
    run.end()
    assert followed(log) == viewed(store, run.run_id) == followed(TrainingLog(store, run.run_id))
    trained = query(store, "SELECT rollout_id FROM trained WHERE step = 3", runs=[run.run_id])
    mine = [rollout.rollout_id for group in log.step(3).groups for rollout in group.rollouts]
    assert sorted(mine) == sorted(row["rollout_id"] for row in trained)


def test_a_look_reads_only_what_is_new(store: Path) -> None:
    run = SyntheticTraining(store, samples=1)
    run.train(2)
    log = TrainingLog(store, run.run_id)
    first = log.look()
    assert log.look() is first
    run.step()
    assert log.look().last_step == 3
    run.close()


def test_a_step_under_way_is_told_apart(store: Path) -> None:
    run = SyntheticTraining(store, samples=1)
    run.train(1)
    run.ask(2)
    log = TrainingLog(store, run.run_id)
    newest, before = log.look().steps[:2]
    assert (newest["step"], newest["under_way"], newest["rollouts"]) == (2, True, None)
    assert (before["step"], before["under_way"]) == (1, False)
    assert not log.step(2).learned
    assert len(log.step(2).groups) == 12
    run.close()


def test_rollouts_tell_what_no_trainer_writes(store: Path) -> None:
    run = SyntheticTraining(store)
    for sample, (invalid, reward) in enumerate([(1, 1.0), (2, 0.0), (0, 0.0)]):
        name = rollout_id(run.run_id, "t", "react", sample)
        run.state(name, "queued", purpose="train", step=1, group_id="g")
        run.orchestrator.append("grade", rollout_id=name, attempt=0, reward=reward)
        run.state(name, "done", invalid_calls=invalid)
    lost = rollout_id(run.run_id, "t", "react", 9)
    run.state(lost, "queued", purpose="train", step=1, group_id="g")
    run.state(lost, "queued", 1, purpose="train", step=1, group_id="g")
    run.state(lost, "error", 1, error_class="sandbox")
    curves = TrainingLog(store, run.run_id).look().curves
    told = {name: list(curve.values) for name, curve in curves.items()}
    assert told == {
        "rollouts.errors.sandbox": [1],
        "rollouts.recovered": [0.5],
        "rollouts.retried": [1],
        "rollouts.reward": [pytest.approx(1 / 3)],
    }
    run.close()


def test_how_a_run_stands(store: Path) -> None:
    run = SyntheticTraining(store, samples=1)
    log = TrainingLog(store, run.run_id)
    assert log.look().state == "running"
    run.close()
    assert log.look().state == "interrupted"
    again = SyntheticRun(store, "r0000000bbb")
    again.end("failed")
    assert TrainingLog(store, "r0000000bbb").look().state == "failed"


def test_only_runs_that_train_are_listed_and_the_newest_is_first(store: Path) -> None:
    runs = TrainingRuns(store)
    assert runs.newest_first() == []
    plain = SyntheticRun(store, "r0000000zzz")
    plain.rollout()
    plain.orchestrator.append("metric", step=0, name="eval.success", value=0.5)
    one, two = (SyntheticTraining(store, name) for name in ("r0000000aaa", "r0000000bbb"))
    assert runs.newest_first() == ["r0000000bbb", "r0000000aaa"]
    plain.orchestrator.append("metric", step=1, name="train.reward", value=0.5)
    assert runs.newest_first()[0] == "r0000000zzz"
    for run in (plain, one, two):
        run.close()
