"""Reading files while others write them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from synthetic import SyntheticRun

from openforge.errors import InfraError, UsageError
from openforge.ids import RolloutId
from openforge.store.connect import connect, find_run, new_connection, query, refresh, with_views
from openforge.store.snapshot import last_seq

ROLLOUT = RolloutId("r0000000aaa.t.react.0")
WRITER = """
import sys, time
sys.path.insert(0, {here!r})
from pathlib import Path
from synthetic import SyntheticRun
run = SyntheticRun(Path({root!r}), {run!r}, rotate_bytes=150_000)
calls = 0
while True:
    run.call(run.run_id + ".t.react.0")
    calls += 1
    print(calls, flush=True)
    time.sleep(0.01)
"""


def count(root: Path, view: str = "calls") -> Any:
    return query(root, f"SELECT count(*) AS n FROM {view}")[0]["n"]


@pytest.fixture
def writer(store_root: Path) -> Iterator[subprocess.Popen[str]]:
    """A real writer in a process of its own that says how many calls it has written, and rotates often."""
    code = WRITER.format(here=str(Path(__file__).parent), root=str(store_root), run="r0000000bbb")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def acknowledged(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.mark.contract
def test_q01_a_reader_sees_what_is_acknowledged_while_the_writer_writes_and_rotates(
    writer: subprocess.Popen[str], store_root: Path
) -> None:
    seen = 0
    for _ in range(8):
        said = acknowledged(writer)
        found = count(store_root)
        assert found >= max(said, seen)
        assert query(store_root, "SELECT count(*) = count(DISTINCT seq) AS once FROM raw.call_close") == [
            {"once": True}
        ]
        seen = found
    assert len(list(store_root.glob("runs/*/journal/*/*.jsonl"))) > 2  # it did rotate meanwhile


@pytest.mark.contract
def test_q11_kill_9_of_the_writer_loses_nothing_that_was_acknowledged(
    writer: subprocess.Popen[str], store_root: Path
) -> None:
    for _ in range(20):
        said = acknowledged(writer)
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read().split() if writer.stdout else []
    said = int(rest[-1]) if rest else said
    writer.wait()
    assert said <= count(store_root) <= said + 1
    assert query(store_root, "SELECT state FROM runs") == [{"state": "interrupted"}]


@pytest.mark.contract
def test_q04_two_programs_ask_at_once_while_this_one_stays_connected(make_run, store_root: Path) -> None:
    make_run().rollout()
    con = connect(store_root)
    con.execute("SELECT count(*) FROM calls")
    code = (
        "import sys; from pathlib import Path; from openforge.store.connect import query;"
        "print(query(Path(sys.argv[1]), 'SELECT count(*) AS n FROM calls')[0]['n'])"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, str(store_root)], stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in others] == ["3", "3"]
    assert con.execute("SELECT count(*) FROM calls").fetchall() == [(3,)]


def test_q02_two_connections_in_one_process_with_other_settings(make_run, store_root: Path) -> None:
    make_run().rollout()
    plain, small = connect(store_root), new_connection(memory_limit="300MB")
    refresh(small, store_root)
    assert plain.execute("FROM rollouts").fetchall() == small.execute("FROM rollouts").fetchall()


def test_q05_eight_threads_ask_at_once(make_run, store_root: Path) -> None:
    make_run().rollout(turns=5)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(count(store_root))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5] * 8


def test_rows_appended_after_connecting_are_seen_by_the_next_query(make_run, store_root: Path) -> None:
    run = make_run()
    run.call(ROLLOUT)
    con = connect(store_root)
    assert con.execute("SELECT count(*) FROM calls").fetchall() == [(1,)]
    run.call(ROLLOUT)
    assert con.execute("SELECT count(*) FROM calls").fetchall() == [(2,)]


def test_a_segment_sealed_in_the_middle_of_a_query_is_found_under_its_new_name(make_run, store_root: Path) -> None:
    run = make_run()
    run.call(ROLLOUT)

    def ask(con: duckdb.DuckDBPyConnection) -> Any:
        run.close()  # renames the file that `con` was told to read
        return con.execute("SELECT count(*) FROM calls").fetchall()

    assert with_views(store_root, ask) == [(1,)]


def test_a_run_deleted_under_a_query_is_an_error_that_says_so(make_run, store_root: Path) -> None:
    run = make_run()

    def ask(con: duckdb.DuckDBPyConnection) -> Any:
        shutil.rmtree(run.run_dir / "journal", ignore_errors=True)
        run.run_dir.joinpath("journal", "recorder-a").mkdir(parents=True)
        (run.run_dir / "journal" / "recorder-a" / "000000000000.jsonl").write_text("{}\n")
        refresh(con, store_root)
        (run.run_dir / "journal" / "recorder-a" / "000000000000.jsonl").unlink()
        return con.execute("SELECT count(*) FROM calls").fetchall()

    with pytest.raises(InfraError, match="keep changing") as caught:
        with_views(store_root, ask)
    assert "run the query again" in caught.value.hint


def test_a_deleted_run_is_gone_and_the_others_stay(make_run, store_root: Path) -> None:
    make_run("r0000000aaa").call(RolloutId("r0000000aaa.t.react.0"))
    make_run("r0000000bbb").call(RolloutId("r0000000bbb.t.react.0"))
    shutil.rmtree(store_root / "runs" / "r0000000aaa")
    assert query(store_root, "SELECT run_id FROM calls") == [{"run_id": "r0000000bbb"}]


def test_a_line_torn_at_any_byte_hides_nothing_before_it(make_run, store_root: Path) -> None:
    run = make_run()
    for _ in range(2):
        run.call(ROLLOUT)
    run.close()
    (segment,) = run.run_dir.glob("journal/recorder-a/*.jsonl")
    whole = segment.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1  # of the second call.close
    for cut in (start, start + 40, len(whole) - 2):
        segment.write_bytes(whole[:cut])
        assert count(store_root) == 2  # one answered, one of which only the opening is left
        assert query(store_root, "SELECT state FROM calls ORDER BY seq") == [{"state": "done"}, {"state": "lost"}]


def test_what_is_no_record_is_counted_and_everything_else_is_read(make_run, store_root: Path) -> None:
    run = make_run()
    run.call(ROLLOUT)
    (segment,) = run.run_dir.glob("journal/recorder-a/*")
    with segment.open("ab") as file:
        file.write(b"\xff\xfe\x00 garbage\n[1, 2]\n\n" + b'{"kind": "call.close"}\n' + b'{"seq": 5, "ki')
    found = query(store_root, "SELECT recorder_id, lines FROM unreadable")
    assert count(store_root) == 1
    assert found == [{"recorder_id": "recorder-a", "lines": 4}]


def test_q14_a_field_that_comes_late_or_is_unknown_is_no_trouble(make_run, store_root: Path) -> None:
    run = make_run()
    (segment,) = run.run_dir.glob("journal/orchestrator-a/*")
    header = {"v": 1, "recorder_id": "orchestrator-a", "ts": 1.0, "run_id": run.run_id, "kind": "metric", "step": 1}
    with segment.open("a") as file:
        for seq in range(1, 25_001):
            file.write(json.dumps({**header, "seq": seq, "step": seq, "name": "a", "value": 1.0}) + "\n")
        file.write(json.dumps({**header, "seq": 25_001, "name": "b", "value": 2.0, "late": {"x": 1}}) + "\n")
    assert query(store_root, "SELECT name, count(*) AS n FROM metrics GROUP BY ALL ORDER BY ALL") == [
        {"name": "a", "n": 25_000},
        {"name": "b", "n": 1},
    ]


def test_q19_a_value_of_another_type_is_null_and_its_record_stays(make_run, store_root: Path) -> None:
    run = make_run()
    with pytest.raises(UsageError):
        run.orchestrator.append("metric", step="twelve", name="reward", value=1.0)
    (segment,) = run.run_dir.glob("journal/orchestrator-a/*")
    record = {"v": 2, "recorder_id": "orchestrator-a", "seq": 1, "ts": 1.0, "kind": "metric", "run_id": run.run_id}
    with segment.open("a") as file:
        file.write(json.dumps({**record, "step": "twelve", "name": "reward", "value": 1.0}) + "\n")
    assert query(store_root, "SELECT step, name, value FROM metrics") == [
        {"step": None, "name": "reward", "value": 1.0}
    ]


def test_q22_integers_over_2_to_the_53_are_exact(make_run, store_root: Path) -> None:
    make_run().orchestrator.append("metric", step=2**60 + 1, name="tokens", value=1.0)
    assert query(store_root, "SELECT step FROM metrics") == [{"step": 2**60 + 1}]


def test_a_segment_that_was_shipped_twice_counts_once(make_run, store_root: Path) -> None:
    run = make_run()
    for _ in range(5):
        run.call(ROLLOUT)
    run.close()
    (segment,) = run.run_dir.glob("journal/recorder-a/*.jsonl")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.with_name("000000000005.jsonl").write_bytes(b"".join(lines[5:]))
    assert last_seq(segment) == len(lines) - 1
    assert count(store_root) == 5
    assert query(store_root, "SELECT count(*) AS n FROM raw.call_open") == [{"n": 5}]


@pytest.mark.parametrize("size", [40 << 20, 3 << 20])
def test_a_very_long_line_is_read(make_run, store_root: Path, size: int) -> None:
    run = make_run()
    name = run.recorder.blob("x" * size)
    run.call(ROLLOUT, messages=[{"position": 0, "role": "user", "text": None, "text_blob": name}])
    assert query(store_root, "SELECT length(text) AS n FROM messages") == [{"n": size}]


def test_only_the_runs_asked_for_are_read(make_run, store_root: Path) -> None:
    for name in ("r0000000aaa", "r0000000bbb"):
        make_run(name).call(RolloutId(f"{name}.t.react.0"))
    assert query(store_root, "SELECT DISTINCT run_id FROM calls", runs=["r0000000bbb"]) == [{"run_id": "r0000000bbb"}]
    assert find_run(store_root, "latest") == "r0000000bbb"
    assert find_run(store_root, "r0000000a") == "r0000000aaa"
    with pytest.raises(UsageError):
        find_run(store_root, "r0")


def test_names_with_quotes_and_globs_are_names(tmp_path: Path) -> None:
    root = tmp_path / "it's [a] store*"
    root.mkdir()
    run = SyntheticRun(root)
    run.call(ROLLOUT)
    assert count(root) == 1
    run.close()


def test_a_python_variable_is_no_table(make_run, store_root: Path) -> None:
    make_run()
    secret = [1, 2, 3]
    with pytest.raises(duckdb.CatalogException):
        connect(store_root).execute("SELECT * FROM secret")
    assert secret


def test_nothing_is_written_into_the_store_by_reading(make_run, store_root: Path) -> None:
    make_run().rollout()
    before = {path: path.stat().st_mtime_ns for path in store_root.rglob("*")}
    time.sleep(0.01)
    query(store_root, "SELECT * FROM calls")
    assert {path: path.stat().st_mtime_ns for path in store_root.rglob("*")} == before
    assert not Path(os.curdir, ".tmp").exists()
