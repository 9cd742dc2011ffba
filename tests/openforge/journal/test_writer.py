"""One append a record; a failed write breaks the writer for good, loudly."""

import base64
import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from openforge.journal import writer as writer_module
from openforge.journal.reader import ReadStats, read_records
from openforge.journal.records import JournalError, RecordError
from openforge.journal.seal import seal_abandoned
from openforge.journal.writer import blob_hash

type Metric = Callable[[Any, int], int]


def names(run_dir: Path, recorder_id: str = "rec-a") -> list[str]:
    return sorted(os.listdir(run_dir / "journal" / recorder_id))


def test_a_record_has_its_header_and_can_be_read_at_once(make_writer: Any, run_dir: Path) -> None:
    writer = make_writer()
    assert writer.append("metric", rollout_id="r1.t.h.0", attempt=2, step=1, name="loss", value=0.5) == 0
    (record,) = read_records(run_dir)
    assert abs(record.pop("ts") - os.stat(run_dir / "journal/rec-a/000000000000.jsonl.open").st_mtime) < 5
    assert record == {
        "v": 1, "recorder_id": "rec-a", "seq": 0, "kind": "metric", "run_id": "r1",
        "rollout_id": "r1.t.h.0", "attempt": 2, "step": 1, "name": "loss", "value": 0.5,
    }  # fmt: skip


def test_each_record_is_one_write(make_writer: Any, metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = os.write
    monkeypatch.setattr(writer_module.os, "write", lambda fd, data: sizes.append(len(data)) or real(fd, data))
    writer = make_writer()
    for step in range(3):
        metric(writer, step)
    writer.append("sample.refused", call_ids=["c" * 100_000], reason="x")
    assert len(sizes) == 4


def test_closing_seals_and_an_empty_segment_leaves_no_file(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    writer = make_writer()
    make_writer("rec-b").close()
    metric(writer, 0)
    assert names(run_dir) == ["000000000000.jsonl.open"]
    writer.close()
    writer.close()
    assert names(run_dir) == ["000000000000.jsonl"]
    assert names(run_dir, "rec-b") == []
    with pytest.raises(JournalError, match="closed"):
        metric(writer, 1)


def test_segments_rotate_by_size_and_are_named_by_their_first_record(
    make_writer: Any, metric: Metric, run_dir: Path
) -> None:
    writer = make_writer(rotate_bytes=500)
    for step in range(7):
        metric(writer, step)
    writer.append("sample.refused", call_ids=["c" * 2000], reason="longer than a segment")
    metric(writer, 8)
    *sealed, last = names(run_dir)
    assert last.endswith(".open")
    assert all(name.endswith(".jsonl") for name in sealed)
    for name in names(run_dir):
        first = (run_dir / "journal/rec-a" / name).read_bytes().splitlines()[0]
        assert orjson.loads(first)["seq"] == int(name.split(".")[0])
    assert all(os.path.getsize(run_dir / "journal/rec-a" / name) <= 500 for name in sealed if "007" not in name)
    assert [record["seq"] for record in read_records(run_dir)] == list(range(9))


def test_a_record_that_does_not_fit_its_kind_writes_nothing_and_breaks_nothing(
    make_writer: Any, metric: Metric, run_dir: Path
) -> None:
    writer = make_writer()
    for fields in ({"step": "x", "name": "n", "value": 1.0}, {"step": 1}, {"nope": 1}):
        with pytest.raises(RecordError):
            writer.append("metric", **fields)
    with pytest.raises(RecordError):
        writer.append("harness.fingerprint", harness="x", fingerprint=object())
    assert metric(writer, 0) == 0
    assert len(list(read_records(run_dir))) == 1


def failing(monkeypatch: pytest.MonkeyPatch, name: str, after: int, fail: Callable[..., Any]) -> None:
    """Let `os.<name>` of the writer fail once it was called `after` times."""
    real, calls = getattr(os, name), [0]

    def patched(*args: Any) -> Any:
        calls[0] += 1
        return real(*args) if calls[0] <= after else fail(*args)

    monkeypatch.setattr(writer_module.os, name, patched)


def raising(number: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_a_failed_write_breaks_the_writer_for_good(
    make_writer: Any, metric: Metric, run_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    writer = make_writer()
    metric(writer, 0)
    with monkeypatch.context() as patch:
        failing(patch, "write", 0, raising(number))
        with pytest.raises(JournalError, match=os.strerror(number)) as caught:
            metric(writer, 1)
    assert caught.value.exit_code == 3
    assert os.strerror(number) in writer.broken
    for _ in range(2):  # also when the disk has room again: seq 1 is missing, so nothing may follow
        with pytest.raises(JournalError, match="no more records"):
            metric(writer, 1)
    with pytest.raises(JournalError):
        writer.blob("x")
    with pytest.raises(JournalError):
        writer.sync()
    assert [record["seq"] for record in read_records(run_dir)] == [0]
    writer.close()
    assert seal_abandoned(run_dir).torn == 0
    assert names(run_dir) == ["000000000000.jsonl"]


@pytest.mark.parametrize("can_cut", [True, False])
def test_a_short_write_is_cut_off_and_breaks_the_writer(
    make_writer: Any, metric: Metric, run_dir: Path, monkeypatch: pytest.MonkeyPatch, can_cut: bool
) -> None:
    writer = make_writer()
    metric(writer, 0)
    real = os.write
    with monkeypatch.context() as patch:
        failing(patch, "write", 0, lambda fd, data: real(fd, data[:10]))
        if not can_cut:
            failing(patch, "ftruncate", 0, raising(errno.EIO))
        with pytest.raises(JournalError, match="only 10 of"):
            metric(writer, 1)
    stats = ReadStats()
    assert [record["seq"] for record in read_records(run_dir, stats=stats)] == [0]
    assert (stats.torn, stats.damaged) == (0 if can_cut else 1, 0)
    writer.close()
    assert seal_abandoned(run_dir).torn == (0 if can_cut else 1)


def test_a_failed_sync_breaks_the_writer(make_writer: Any, metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make_writer(fsync_interval_s=0)
    failing(monkeypatch, "fsync", 1, raising(errno.EIO))
    metric(writer, 0)
    with pytest.raises(JournalError, match="sync"):
        metric(writer, 1)
    with pytest.raises(JournalError, match="no more records"):
        metric(writer, 2)


def test_a_failed_sync_in_the_background_breaks_the_writer(
    make_writer: Any, metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(writer_module.os, "fsync", fail)
    writer = make_writer(fsync_interval_s=0.001)
    metric(writer, 0)
    assert failed.wait(10)
    for thread in threading.enumerate():
        if thread.name == "journal-fsync" and thread.ident != threading.get_ident():
            thread.join(10)
            break
    with pytest.raises(JournalError, match="sync"):
        metric(writer, 1)


def test_what_was_written_is_synced_within_the_interval_without_further_appends(
    make_writer: Any, metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr(writer_module.os, "fsync", lambda fd: synced.set())
    writer = make_writer(fsync_interval_s=0.01)
    metric(writer, 0)
    assert synced.wait(10)


@pytest.mark.parametrize("failing_call", ["rename", "fsync", "open"])
def test_a_failed_rotation_breaks_the_writer_and_loses_nothing(
    make_writer: Any, metric: Metric, run_dir: Path, monkeypatch: pytest.MonkeyPatch, failing_call: str
) -> None:
    writer = make_writer(rotate_bytes=300, fsync_interval_s=3600)
    metric(writer, 0)
    with monkeypatch.context() as patch:
        failing(patch, failing_call, 0, raising(errno.EIO))
        with pytest.raises(JournalError):
            [metric(writer, step) for step in range(1, 4)]
    assert writer.broken
    kept = [record["seq"] for record in read_records(run_dir)]
    assert kept == list(range(len(kept)))
    writer.close()
    seal_abandoned(run_dir)
    assert [record["seq"] for record in read_records(run_dir)] == kept


@pytest.mark.contract
def test_a_file_size_limit_of_the_process_is_reported_not_fatal(run_dir: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from openforge.journal.records import JournalError
from openforge.journal.writer import JournalWriter
writer = JournalWriter(Path(sys.argv[1]), "rec-a", "r1")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
done = 0
try:
    for step in range(100):
        writer.append("metric", step=step, name="loss", value=0.5)
        done += 1
except JournalError as error:
    print(done, bool(writer.broken))
"""
    out = subprocess.run(
        [sys.executable, "-c", script, str(run_dir)], capture_output=True, text=True, timeout=60, check=True
    )
    done, broken = out.stdout.split()
    assert (0 < int(done) < 100, broken) == (True, "True")
    stats = ReadStats()
    assert len(list(read_records(run_dir, stats=stats))) == int(done)
    assert (stats.torn, stats.damaged) == (0, 0)


def test_q20_a_recorder_id_is_for_one_process(make_writer: Any) -> None:
    make_writer("rec-a")
    with pytest.raises(JournalError, match="already"):
        make_writer("rec-a")


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(make_writer: Any, run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / "journal").write_text("a file in the way")
    with pytest.raises(JournalError, match="cannot write"):
        make_writer()


def test_a_living_writer_holds_a_lock_on_its_segment(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    writer = make_writer()
    metric(writer, 0)
    with open(run_dir / "journal/rec-a/000000000000.jsonl.open", "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_blob_is_stored_once_and_found_by_its_hash(make_writer: Any, run_dir: Path) -> None:
    writer = make_writer(rotate_bytes=400)
    hashes = [writer.blob("long text"), writer.blob(b"long text"), writer.blob("other"), writer.blob("long text")]
    assert hashes[0] == hashes[1] == hashes[3] == blob_hash(b"long text") != hashes[2]
    assert len(hashes[0]) == 32
    blobs = {record["hash"]: record["data"] for record in read_records(run_dir, ["blob"])}
    assert blobs == {hashes[0]: "long text", hashes[2]: "other"}
    assert len(list(read_records(run_dir))) == 2


def test_blobs_that_are_no_text_keep_their_bytes(make_writer: Any, run_dir: Path) -> None:
    writer = make_writer()
    for data in (b"\xff\x00", "\ud800"):
        writer.blob(data)
    records = list(read_records(run_dir))
    assert [record["encoding"] for record in records] == ["base64", "base64"]
    assert [blob_hash(base64.b64decode(record["data"])) for record in records] == [record["hash"] for record in records]


def test_the_memory_of_blobs_is_bounded(make_writer: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_SEEN_BLOBS", 2)
    writer = make_writer()
    for data in ("a", "b", "c", "c", "a"):
        writer.blob(data)
    assert [record["data"] for record in read_records(run_dir)] == ["a", "b", "c", "a"]


def test_threads_may_share_a_writer(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    writer = make_writer(rotate_bytes=2000, fsync_interval_s=0.001)
    seqs: list[int] = []

    def work() -> None:
        seqs.extend(metric(writer, step) for step in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(200))
    assert [record["seq"] for record in read_records(run_dir)] == list(range(200))


def test_s02_writers_leave_no_open_file_and_no_thread(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    others = set(threading.enumerate())
    for n in range(8):
        with make_writer(f"rec-{n}", rotate_bytes=300, fsync_interval_s=0.001) as writer:
            for step in range(5):
                metric(writer, step)
    for thread in set(threading.enumerate()) - others:
        thread.join(10)
        assert not (thread.name == "journal-fsync" and thread.is_alive())
    files = [os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.islink(link.path)]
    assert [file for file in files if file.startswith(str(run_dir))] == []
