"""Readers take whole lines, in order, while writers write."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openforge.ids import RecorderId, RunId
from openforge.journal.encode import encode
from openforge.journal.reader import Place, ReadStats, Tail, read_place, read_records
from openforge.journal.records import JournalError
from openforge.journal.seal import seal_abandoned
from openforge.journal.segments import SEALED, Segment, journal_dir, segment_name
from openforge.journal.writer import JournalWriter

type Metric = Callable[[Any, int], int]


def put(run_dir: Path, data: bytes, name: str = segment_name(0), recorder_id: str = "rec-a") -> Path:
    path = journal_dir(run_dir) / recorder_id / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def line(seq: int, **fields: Any) -> bytes:
    return encode({"v": 1, "recorder_id": "rec-a", "seq": seq, "ts": 0.0, "kind": "metric", **fields})


def seqs(records: Any) -> list[int]:
    return [record["seq"] for record in records]


def test_a_run_without_a_journal_has_no_records(run_dir: Path) -> None:
    assert list(read_records(run_dir)) == []
    assert Tail(run_dir).poll() == []
    assert seal_abandoned(run_dir) == ([], 0, 0)


def test_records_come_by_recorder_and_seq(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    b, a = make_writer("rec-b", rotate_bytes=300), make_writer("rec-a", rotate_bytes=300)
    for step in range(5):
        metric(b, step)
        metric(a, step)
    order = [(record["recorder_id"], record["seq"]) for record in read_records(run_dir)]
    assert order == [(name, step) for name in ("rec-a", "rec-b") for step in range(5)]


def test_only_the_wanted_kinds_come_whatever_stands_in_texts(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    writer = make_writer()
    writer.blob('"kind":"metric"')
    writer.append("run.end", state="done", reason='"kind":"metric"' * 50)
    metric(writer, 2)
    assert seqs(read_records(run_dir, ["metric"])) == [2]
    assert seqs(read_records(run_dir, ["metric", "blob"])) == [0, 2]
    assert seqs(Tail(run_dir, ["run.end"]).poll()) == [1]
    assert seqs(read_records(run_dir, [])) == []


def test_a_tail_of_one_role_opens_no_other_file(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    metric(make_writer("orchestrator-a"), 0)
    metric(make_writer("recorder-a"), 0)
    (journal_dir(run_dir) / "recorder-b" / segment_name(0)).mkdir(parents=True)  # no file: opening it fails
    found = Tail(run_dir, role="orchestrator").poll()
    assert [record["recorder_id"] for record in found] == ["orchestrator-a"]


def test_a_torn_last_line_is_skipped_and_counted(run_dir: Path) -> None:
    put(run_dir, line(0) + line(1)[:-5])
    stats = ReadStats()
    assert seqs(read_records(run_dir, stats=stats)) == [0]
    assert stats == ReadStats(torn=1, damaged=0)


def test_damage_in_the_middle_is_skipped_and_counted(run_dir: Path) -> None:
    put(run_dir, line(0) + b'{"seq":1,"ki\0\0\n' + b"\n" + line(2), segment_name(0).removesuffix(".open"))
    stats, tail = ReadStats(), Tail(run_dir)
    assert seqs(read_records(run_dir, stats=stats)) == [0, 2]
    assert stats == ReadStats(torn=0, damaged=2)
    assert (seqs(tail.poll()), tail.stats.damaged) == ([0, 2], 2)


def test_a_line_whose_end_arrives_while_it_is_read_is_not_read_by_halves(run_dir: Path) -> None:
    path = put(run_dir, line(0) + line(1)[:20])
    stats = ReadStats()
    records = read_records(run_dir, stats=stats)
    assert next(records)["seq"] == 0
    with path.open("ab") as file:
        file.write(line(1)[20:] + line(2))
    assert seqs(records) in ([], [1, 2])
    assert stats.damaged == 0


def test_a_tail_gets_each_record_once_across_rotation_and_sealing(
    make_writer: Any, metric: Metric, run_dir: Path
) -> None:
    tail = Tail(run_dir)
    writer = make_writer(rotate_bytes=400)
    got: list[int] = []
    for step in range(20):
        metric(writer, step)
        if step % 3 == 0:
            got += seqs(tail.poll())
    writer.close()
    got += seqs(tail.poll())
    assert got == list(range(20))
    assert tail.poll() == []


def test_a_tail_waits_for_the_end_of_a_line_and_survives_its_being_cut_off(run_dir: Path) -> None:
    path = put(run_dir, line(0) + line(1)[:20])
    tail = Tail(run_dir)
    assert seqs(tail.poll()) == [0]
    assert seqs(tail.poll()) == []
    with path.open("ab") as file:
        file.write(line(1)[20:])
    assert seqs(tail.poll()) == [1]
    with path.open("ab") as file:
        file.write(line(2)[:20])
    assert tail.poll() == []
    assert seal_abandoned(run_dir).torn == 1
    put(run_dir, line(2), segment_name(2))
    assert seqs(tail.poll()) == [2]


def test_a_tail_reads_nothing_twice(
    make_writer: Any, metric: Metric, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(rotate_bytes=1000)
    for step in range(50):
        metric(writer, step)
    read = [0]
    real = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        data = real(fd, size, offset)
        read[0] += len(data)
        return data

    monkeypatch.setattr("openforge.journal.reader.os.pread", counted)
    tail = Tail(run_dir)
    tail.poll()
    first = read[0]
    assert first == sum(path.stat().st_size for path in (run_dir / "journal/rec-a").iterdir())
    metric(writer, 50)
    tail.poll()
    assert 0 < read[0] - first < 300


@pytest.mark.parametrize("max_bytes", [1, 7, 150, 400, 1000])
def test_a_tail_in_small_bites_loses_nothing(make_writer: Any, metric: Metric, run_dir: Path, max_bytes: int) -> None:
    for name in ("rec-a", "rec-b"):
        writer = make_writer(name, rotate_bytes=500)
        for step in range(12):
            metric(writer, step)
    tail, got = Tail(run_dir), []
    while bite := tail.poll(max_bytes):
        got += seqs(bite)
    assert got == [*range(12), *range(12)]


def test_a_segment_sealed_between_listing_and_reading_is_still_read(run_dir: Path) -> None:
    from openforge.journal import reader

    path = put(run_dir, line(0))
    listed = Segment("rec-a", 0, path)
    path.rename(path.with_name("000000000000" + SEALED))
    os.close(reader._open(listed))
    path.with_name("000000000000" + SEALED).unlink()
    with pytest.raises(JournalError, match="gone"):
        reader._open(listed)


def test_strange_files_in_the_folder_are_left_alone(make_writer: Any, metric: Metric, run_dir: Path) -> None:
    writer = make_writer()
    metric(writer, 0)
    for name in (
        "000000000005.torn",
        "000000000006.jsonl.open.new",
        "manifest.json",
        "x.jsonl",
        "000000000009.jsonl.tmp",
    ):
        put(run_dir, b"{}\n", name)
    put(run_dir, b"{}\n", "../notes.txt")
    assert seqs(read_records(run_dir)) == [0]


TEXTS = st.lists(st.text(st.characters(), max_size=60), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, st.integers(0, 1_000_000))
def test_torn_at_any_byte_every_whole_record_is_read_and_sealed(
    tmp_path_factory: Any, texts: list[str], cut_ppm: int
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    with JournalWriter(run_dir, RecorderId("rec-a"), RunId("r1"), fsync_interval_s=3600) as writer:
        for text in texts:
            writer.append("run.end", state=text, reason=text)
    (sealed,) = (run_dir / "journal/rec-a").iterdir()
    whole = sealed.read_bytes()
    cut = len(whole) * cut_ppm // 1_000_000
    sealed.unlink()
    path = put(run_dir, whole[:cut])
    torn = int(cut > 0 and whole[cut - 1 : cut] != b"\n")
    count = whole[:cut].count(b"\n")

    stats = ReadStats()
    expected = [text.encode("utf-8", "backslashreplace").decode() for text in texts[:count]]
    assert [record["state"] for record in read_records(run_dir, stats=stats)] == expected
    assert (stats.torn, stats.damaged) == (torn, 0)
    tail = Tail(run_dir)
    assert len(tail.poll()) == count

    result = seal_abandoned(run_dir)
    assert (result.torn, result.live, len(result.paths)) == (torn, 0, int(count > 0))
    assert not path.exists()
    assert [record["state"] for record in read_records(run_dir)] == expected
    if torn:
        kept = (run_dir / "journal/rec-a/000000000000.torn").read_bytes()
        assert kept == whole[:cut].rsplit(b"\n", 1)[-1]
    assert tail.poll() == []


WRITER = """
import sys
from pathlib import Path
from openforge.journal.writer import JournalWriter
writer = JournalWriter(Path(sys.argv[1]), sys.argv[2], "r1", rotate_bytes=20_000, fsync_interval_s=0.01)
text = "x" * 300
for step in range(int(sys.argv[3])):
    seq = writer.append("run.end", state=str(step), reason=text * (step % 7))
    sys.stdout.write(f"{seq}\\n")
    sys.stdout.flush()
if sys.argv[4] == "close":
    writer.close()
"""


def start_writer(run_dir: Path, name: str, count: int, end: str = "close") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(run_dir), name, str(count), end]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.contract
def test_kill_9_at_any_moment_loses_no_acknowledged_record(run_dir: Path) -> None:
    for n in range(8):
        process = start_writer(run_dir, f"rec-{n}", 1_000_000)
        assert process.stdout
        acknowledged = -1
        for text in process.stdout:
            acknowledged = int(text)
            if acknowledged >= 37 * n:
                break
        process.kill()
        acknowledged = max([acknowledged, *(int(x) for x in process.stdout.read().split("\n")[:-1] if x)])
        process.wait(30)
        process.stdout.close()
        stats = ReadStats()
        found = [record["seq"] for record in read_records(run_dir, stats=stats) if record["recorder_id"] == f"rec-{n}"]
        assert found == list(range(len(found)))
        assert len(found) > acknowledged >= 0
        assert stats.damaged == 0
    before = [(record["recorder_id"], record["seq"]) for record in read_records(run_dir)]
    sealed = seal_abandoned(run_dir)
    assert (len(sealed.paths), sealed.live) == (8, 0)
    assert not list(run_dir.rglob("*.open"))
    assert [(record["recorder_id"], record["seq"]) for record in read_records(run_dir)] == before


@pytest.mark.contract
def test_two_writers_beside_live_readers_and_a_sealer(run_dir: Path) -> None:
    """Rotating every few records; nothing is lost, doubled, reordered or sealed under a living writer."""
    count = 2500
    writers = [start_writer(run_dir, name, count) for name in ("rec-a", "rec-b")]
    tail, got = Tail(run_dir), dict.fromkeys(("rec-a", "rec-b"), 0)

    def take() -> None:
        for record in tail.poll(100_000):
            assert record["seq"] == got[record["recorder_id"]]
            got[record["recorder_id"]] += 1

    while any(process.poll() is None for process in writers):
        take()
        seen, stats, counts = dict(got), ReadStats(), dict.fromkeys(got, 0)
        for record in read_records(run_dir, stats=stats):
            assert record["seq"] == counts[record["recorder_id"]]
            counts[record["recorder_id"]] += 1
        assert all(counts[name] >= seen[name] for name in got)
        assert stats.damaged == 0
        assert seal_abandoned(run_dir).torn == 0
    for process in writers:
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out.split()) == (0, [str(seq) for seq in range(count)])
    before = -1
    while sum(got.values()) > before:
        before = sum(got.values())
        take()
    assert got == {"rec-a": count, "rec-b": count}
    assert tail.stats == ReadStats()
    assert len(list(run_dir.rglob("*.jsonl"))) > 20
    assert not [*run_dir.rglob("*.open"), *run_dir.rglob("*.torn")]


def test_a_record_is_found_again_by_its_place_after_its_segment_was_sealed(run_dir: Path) -> None:
    writer = JournalWriter(run_dir, RecorderId("rec-a"), RunId("r1"), rotate_bytes=400)
    tail = Tail(run_dir, ["metric"])
    for step in range(6):
        writer.append("metric", step=step, name="größe", value=1.0)
        writer.append("run.end", state="done")
    places = tail.poll_places()
    writer.close()
    assert len({place.first_seq for place, _ in places}) > 1
    for place, record in places:
        assert read_place(run_dir, place) == record
    assert [record["step"] for _, record in places] == list(range(6))


def test_a_place_that_holds_no_record_is_an_error(run_dir: Path) -> None:
    with JournalWriter(run_dir, RecorderId("rec-a"), RunId("r1")) as writer:
        writer.append("metric", step=0, name="n", value=1.0)
    with pytest.raises(JournalError, match="no record at byte 3"):
        read_place(run_dir, Place("rec-a", 0, 3, 10))


def test_a_tail_says_that_there_is_more_even_when_nothing_it_read_was_wanted(run_dir: Path) -> None:
    with JournalWriter(run_dir, RecorderId("rec-a"), RunId("r1")) as writer:
        for _ in range(20):
            writer.append("run.end", state="done", reason="x" * 100)
        writer.append("metric", step=7, name="n", value=1.0)
    tail, polls = Tail(run_dir, ["metric"]), 1
    while not tail.poll(max_bytes=1000):
        assert tail.more
        polls += 1
    assert polls > 2
    assert tail.poll() == []
    assert not tail.more
