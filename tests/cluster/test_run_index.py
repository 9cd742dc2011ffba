"""What the journal of a run says is read once and found again by its place."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.run_index import RunIndex
from cluster.training import Trainer
from openforge.ids import RecorderId, RunId
from openforge.journal.records import KINDS
from openforge.journal.writer import JournalWriter

NAME = "r1.t.react.0"
COLUMNS = {column.name for column in KINDS["sample"]}


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[JournalWriter]:
    with JournalWriter(tmp_path, RecorderId("recorder-a"), RunId("r1"), rotate_bytes=2000) as writer:
        yield writer


def sample(journal: JournalWriter, attempt: int, name: str, *, main: bool = True, rollout: str = NAME) -> None:
    row = {"sample_id": name, "call_ids": ["c1"], "token_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "reason": "leaf"}
    logprobs, weight = [None, -0.5, -0.25], 0.5
    journal.append("sample", rollout_id=rollout, attempt=attempt, is_main=main, weight=weight, logprobs=logprobs, **row)


def state(journal: JournalWriter, attempt: int, name: str, **fields: Any) -> None:
    queued = {"task": "set/t", "harness": "react", "sample": 0, "seed": 5} if name == "queued" else {}
    journal.append("rollout.state", rollout_id=NAME, attempt=attempt, state=name, **{**queued, **fields})


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["sample_id"] for row in rows]


def test_samples_have_every_declared_column_and_the_main_path_is_last(tmp_path: Path, recorder: JournalWriter) -> None:
    sample(recorder, 0, "main")
    sample(recorder, 0, "side", main=False)
    sample(recorder, 1, "of another attempt")
    sample(recorder, 0, "of another rollout", rollout="r1.t.react.1")
    rows = RunIndex(tmp_path).samples(NAME, 0)
    assert ids(rows) == ["side", "main"]
    assert all(set(row) == COLUMNS for row in rows)
    assert (rows[0]["token_ids"], rows[0]["logprobs"], rows[0]["versions"]) == ([1, 2, 3], [None, -0.5, -0.25], None)


def test_an_attempt_without_samples_has_none(tmp_path: Path) -> None:
    assert RunIndex(tmp_path).samples(NAME, 0) == []


def test_asking_again_reads_only_what_is_new_and_the_rows_themselves(
    tmp_path: Path, recorder: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    for number in range(20):
        sample(recorder, number, f"s{number}")
    index = RunIndex(tmp_path)
    index.catch_up()
    whole, read = read, 0
    assert whole == sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl*"))
    for number in range(20):
        assert ids(index.samples(NAME, number)) == [f"s{number}"]
    assert whole * 0.9 < read <= whole  # each row once more, and no byte of the others
    read = 0
    sample(recorder, 20, "new")
    assert ids(index.samples(NAME, 20)) == ["new"]
    assert 0 < read < whole / 5


def test_rows_are_found_after_their_segments_were_sealed(tmp_path: Path, recorder: JournalWriter) -> None:
    index = RunIndex(tmp_path)
    for number in range(20):
        sample(recorder, number, f"s{number}")
        index.catch_up()
    recorder.close()
    assert [ids(index.samples(NAME, number)) for number in range(20)] == [[f"s{number}"] for number in range(20)]


@pytest.mark.parametrize("reached", ["", "starting", "running", "grading"])
def test_what_was_unfinished_is_lost(tmp_path: Path, reached: str) -> None:
    with JournalWriter(tmp_path, RecorderId("orchestrator-a"), RunId("r1")) as journal:
        state(journal, 0, "queued", purpose="eval", step=3, group_id="g", key="k")
        if reached:
            state(journal, 0, reached)
    index = RunIndex(tmp_path)
    index.catch_up()
    [told] = index.rollouts.values()
    assert (told.state, told.finished, told.reward, told.seed) == ("lost", True, None, 5)
    assert (told.purpose, told.step, told.group, told.key) == ("eval", 3, "g", "k")


def test_a_grade_counts_only_when_the_attempt_came_to_its_end(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, RecorderId("orchestrator-a"), RunId("r1")) as journal:
        state(journal, 0, "queued")
        journal.append("grade", rollout_id=NAME, attempt=0, reward=1.0)
        index = RunIndex(tmp_path)
        index.catch_up()
        assert (index.rollouts[NAME].state, index.rollouts[NAME].reward) == ("lost", None)
        state(journal, 0, "failed", error_class="limit", detail="over", duration_s=2.0, exit_code=1, invalid_calls=3)
        index.catch_up()
    told = index.rollouts[NAME]
    assert (told.state, told.reward, told.error_class, told.detail) == ("failed", 1.0, "limit", "over")
    assert (told.duration_s, told.exit_code, told.invalid_calls) == (2.0, 1, 3)


def test_the_latest_attempt_counts_whatever_the_orchestrators_are_called(tmp_path: Path) -> None:
    with JournalWriter(tmp_path, RecorderId("orchestrator-z"), RunId("r1")) as first:
        first.append("run.start", config={}, tasks=[], harnesses=[], samples=1, policy={}, version="0", incarnation=0)
        first.append("train.start", from_step=0, incarnation=0)
        state(first, 0, "queued")
        state(first, 0, "error", error_class="recorder")
        state(first, 1, "queued")
    with JournalWriter(tmp_path, RecorderId("orchestrator-a"), RunId("r1")) as second:
        second.append("run.start", config={}, tasks=[], harnesses=[], samples=1, policy={}, version="0", incarnation=1)
        second.append("train.start", from_step=2, incarnation=1)
        state(second, 2, "queued")
        second.append("grade", rollout_id=NAME, attempt=2, reward=0.5)
        state(second, 2, "done")
    index = RunIndex(tmp_path)
    index.catch_up()
    told = index.rollouts[NAME]
    assert (told.attempt, told.state, told.reward, told.error_class) == (2, "done", 0.5, None)
    assert (index.starts, index.trainer) == (2, Trainer(1, 2))
