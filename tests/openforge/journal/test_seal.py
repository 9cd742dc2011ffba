"""What dead writers left is sealed; what living ones write is not touched; a kill in between is no harm."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openforge.journal import seal as seal_module
from openforge.journal.encode import encode
from openforge.journal.reader import read_records
from openforge.journal.seal import seal_abandoned
from openforge.journal.segments import segment_name


def line(seq: int, text: str = "") -> bytes:
    return encode({"v": 1, "recorder_id": "rec-a", "seq": seq, "ts": 0.0, "kind": "run.end", "state": text})


def abandon(run_dir: Path, data: bytes, first_seq: int = 0, recorder_id: str = "rec-a") -> Path:
    path = run_dir / "journal" / recorder_id / segment_name(first_seq)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_living_writer_is_counted_and_not_touched(
    make_writer: Any, metric: Callable[..., int], run_dir: Path
) -> None:
    writer = make_writer()
    metric(writer, 0)
    abandon(run_dir, line(0), recorder_id="rec-b")
    result = seal_abandoned(run_dir)
    assert (len(result.paths), result.live) == (1, 1)
    metric(writer, 1)
    assert len(list(read_records(run_dir))) == 3


def test_an_empty_segment_is_removed_and_a_torn_one_keeps_its_end_beside_it(run_dir: Path) -> None:
    empty = abandon(run_dir, b"", recorder_id="rec-b")
    torn = abandon(run_dir, line(0) + b'{"half')
    result = seal_abandoned(run_dir)
    assert result == ([torn.with_name("000000000000.jsonl")], 1, 0)
    assert not empty.exists()
    assert torn.with_name("000000000000.torn").read_bytes() == b'{"half'
    assert torn.with_name("000000000000.jsonl").read_bytes() == line(0)


def test_a_torn_line_longer_than_a_block_is_found(run_dir: Path) -> None:
    whole, torn = line(0, "a" * 200_000), line(1, "b" * 300_000)[:-1]
    path = abandon(run_dir, whole + torn)
    assert seal_abandoned(run_dir).torn == 1
    assert path.with_name("000000000000.jsonl").read_bytes() == whole
    assert path.with_name("000000000000.torn").read_bytes() == torn


def test_nothing_but_a_torn_line_leaves_only_that(run_dir: Path) -> None:
    path = abandon(run_dir, b'{"half')
    assert seal_abandoned(run_dir) == ([], 1, 0)
    assert os.listdir(path.parent) == ["000000000000.torn"]


def test_a_sealed_journal_is_left_as_it_is(make_writer: Any, metric: Callable[..., int], run_dir: Path) -> None:
    writer = make_writer()
    metric(writer, 0)
    writer.close()
    assert seal_abandoned(run_dir) == ([], 0, 0)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", ["ftruncate", "fsync", "rename"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sealer_killed_anywhere_is_finished_by_the_next(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, at: str, when: str
) -> None:
    path = abandon(run_dir, line(0) + line(1) + b'{"half')
    real = getattr(os, at)

    def killed(*args: Any) -> None:
        if when == "after":
            real(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(seal_module.os, at, killed)
        with pytest.raises(Killed):
            seal_abandoned(run_dir)
    assert [record["seq"] for record in read_records(run_dir)] == [0, 1]
    seal_abandoned(run_dir)
    assert path.with_name("000000000000.jsonl").read_bytes() == line(0) + line(1)
    assert path.with_name("000000000000.torn").read_bytes() == b'{"half'
    assert not path.exists()


def test_a_segment_sealed_by_somebody_else_meanwhile_is_skipped(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = abandon(run_dir, line(0))
    real = fcntl.flock

    def sealed_first(fd: int, operation: int) -> None:
        path.rename(path.with_name("000000000000.jsonl"))
        real(fd, operation)

    monkeypatch.setattr(seal_module.fcntl, "flock", sealed_first)
    assert seal_abandoned(run_dir) == ([], 0, 0)
    assert path.with_name("000000000000.jsonl").exists()
