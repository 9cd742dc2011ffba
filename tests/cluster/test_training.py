"""What a trainer tells of itself, in the journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.roster import ConflictError
from cluster.training import Trainer, Training
from openforge.ids import RecorderId, RunId
from openforge.journal.reader import read_records
from openforge.journal.writer import JournalWriter


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    with JournalWriter(tmp_path, RecorderId("orchestrator-a"), RunId("r1")) as writer:
        yield writer


def test_each_start_of_a_trainer_is_an_incarnation(tmp_path: Path, journal: JournalWriter) -> None:
    training = Training(journal, None)
    assert training.started(0, pid=10) == Trainer(0, 0, 10)
    assert training.started(4, pid=11) == Trainer(1, 4, 11)
    found = [(r["incarnation"], r["from_step"]) for r in read_records(tmp_path, ["train.start"])]
    assert found == [(0, 0), (1, 4)]


def test_a_start_told_twice_is_one_start(tmp_path: Path, journal: JournalWriter) -> None:
    training = Training(journal, None)
    assert training.started(0, pid=10) == training.started(0, pid=10)
    assert len(list(read_records(tmp_path, ["train.start"]))) == 1


def test_a_start_after_work_is_another_one_though_it_looks_the_same(journal: JournalWriter) -> None:
    training = Training(journal, None)
    training.started(0, pid=10)
    training.step(1, "1", [], 0, None)
    assert training.started(0, pid=10).incarnation == 1


def test_incarnations_count_on_from_those_of_an_earlier_orchestrator(journal: JournalWriter) -> None:
    assert Training(journal, Trainer(3, 8)).started(8, pid=10).incarnation == 4


def test_steps_and_numbers_carry_the_incarnation(tmp_path: Path, journal: JournalWriter) -> None:
    training = Training(journal, None)
    training.metrics(0, {"eval.success": 0.25})
    training.started(0, pid=10)
    training.metrics(1, {"train.reward": 0.5})
    training.step(1, "1", ["r1.t.react.0"], 2, 1)
    metrics = [(r["name"], r["value"], r.get("incarnation")) for r in read_records(tmp_path, ["metric"])]
    assert metrics == [("eval.success", 0.25, None), ("train.reward", 0.5, 0)]
    [step] = read_records(tmp_path, ["train.step"])
    assert (step["step"], step["incarnation"], step["weight_version"]) == (1, 0, "1")
    assert (step["rollouts"], step["samples"], step["staleness_max"]) == (["r1.t.react.0"], 2, 1)


def test_a_step_without_a_trainer_is_refused(journal: JournalWriter) -> None:
    with pytest.raises(ConflictError, match="no trainer"):
        Training(journal, None).step(1, "1", [], 0, None)
