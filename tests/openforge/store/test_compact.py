"""Compaction: every record exactly once, before, while and after, whoever is killed."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from synthetic import SyntheticRun

from openforge.errors import InfraError
from openforge.ids import RolloutId
from openforge.store.compact import compact
from openforge.store.connect import query, with_views

ROLLOUT = RolloutId("r0000000aaa.t.react.0")
EVERYTHING = ("calls", "messages", "tokens", "samples", "rollouts", "grades", "runs", "blobs", "trained", "metrics")
# Kills itself at the n-th step that touches the disk.
KILLED = """
import os, sys
from pathlib import Path
from openforge.store import compact as module
left = int(sys.argv[2])
def counted(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return function(*args, **kwargs)
    return call
module._sync = counted(module._sync)
module.sync_dir = counted(module.sync_dir)
Path.replace = counted(Path.replace)
Path.unlink = counted(Path.unlink)
module.compact(Path(sys.argv[1]))
print(left)
"""


def content(root: Path) -> dict[str, list[Any]]:
    return with_views(root, lambda con: {view: con.sql(f"FROM {view} ORDER BY ALL").fetchall() for view in EVERYTHING})


def ended_run(make_run) -> SyntheticRun:
    run: SyntheticRun = make_run(rotate_bytes=8_000)
    for sample in range(3):
        run.rollout(sample=sample)
    run.recorder.blob("a long text")
    append = run.orchestrator.append
    append("train.start", from_step=0, incarnation=0)
    append("train.step", step=1, incarnation=0, weight_version="1", rollouts=[ROLLOUT], samples=1)
    append("metric", step=1, name="train.reward", value=0.5, incarnation=0)
    run.end()
    return run


def test_the_same_rows_from_parquet_as_from_segments(make_run, store_root: Path) -> None:
    run = ended_run(make_run)
    before = content(store_root)
    assert all(before.values())
    done = compact(run.run_dir)
    assert done.segments > 2
    assert done.records == sum(1 for path in run.run_dir.glob("journal/*/*.jsonl") for _ in path.open())
    for path in run.run_dir.glob("journal/*/*.jsonl"):
        path.rename(path.with_suffix(".moved"))  # so that only Parquet can answer
    assert content(store_root) == before


def test_it_is_idempotent_and_goes_on_where_it_stopped(make_run, store_root: Path) -> None:
    run = make_run()
    run.rollout(sample=0)
    assert compact(run.run_dir).segments == 0  # its writers live
    run.end()
    assert compact(run.run_dir).segments == 2
    files = {path: path.stat().st_mtime_ns for path in (run.run_dir / "parquet").iterdir()}
    again = compact(run.run_dir)
    assert (again.segments, again.records, again.busy) == (0, 0, False)
    assert {path: path.stat().st_mtime_ns for path in (run.run_dir / "parquet").iterdir()} == files


def test_what_is_written_after_compaction_is_read_beside_it(make_run, store_root: Path) -> None:
    run = make_run(rotate_bytes=4_000)
    first = run.call(ROLLOUT)
    for _ in range(4):
        first = run.call(ROLLOUT, first)
    assert compact(run.run_dir).segments > 0
    last = run.call(ROLLOUT, first)
    found = {row["call_id"]: row["prompt_ids"] for row in query(store_root, "SELECT call_id, prompt_ids FROM calls")}
    assert found == run.truth.prompts
    assert last in found


def test_segments_of_dead_writers_are_sealed_and_taken(make_run, store_root: Path) -> None:
    run = make_run()
    run.call(ROLLOUT)
    run.close()
    for path in list(run.run_dir.glob("journal/*/*.jsonl")):
        path.rename(path.with_name(path.name + ".open"))
    assert compact(run.run_dir).segments == 2
    assert query(store_root, "SELECT count(*) AS n FROM calls") == [{"n": 1}]


def test_lines_that_are_no_records_stay_counted(make_run, store_root: Path) -> None:
    run = make_run()
    run.call(ROLLOUT)
    run.close()
    (segment,) = run.run_dir.glob("journal/recorder-a/*.jsonl")
    with segment.open("ab") as file:
        file.write(b"garbage\n")
    before = query(store_root, "SELECT recorder_id, lines FROM unreadable")
    assert compact(run.run_dir).unreadable == 1
    assert (
        query(store_root, "SELECT recorder_id, lines FROM unreadable")
        == before
        == [{"recorder_id": "recorder-a", "lines": 1}]
    )


def test_rows_of_a_rollout_lie_together(make_run) -> None:
    run = ended_run(make_run)
    compact(run.run_dir)
    (path,) = (run.run_dir / "parquet").glob("call.close-*.parquet")
    names = pq.read_table(path, columns=["rollout_id"])["rollout_id"].to_pylist()
    assert names == sorted(names)


@pytest.mark.contract
def test_kill_9_at_every_step_loses_and_doubles_nothing(make_run, store_root: Path) -> None:
    run = ended_run(make_run)
    before = content(store_root)
    for step in range(0, 200, 3):
        argv = [sys.executable, "-c", KILLED, str(run.run_dir), str(step)]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert content(store_root) == before, f"killed at step {step}"
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert step > 10
    named = json.loads((run.run_dir / "parquet" / "manifest.json").read_text())["files"]
    left = {path.name for path in (run.run_dir / "parquet").iterdir()} - {"manifest.json", "lock"}
    assert left == {name for names in named.values() for name in names}


def test_readers_see_each_record_once_while_it_is_compacted(make_run, store_root: Path) -> None:
    run = ended_run(make_run)
    worker = threading.Thread(target=compact, args=(run.run_dir,))
    worker.start()
    seen = set()
    while worker.is_alive():
        seen.add(query(store_root, "SELECT count(*) AS n FROM calls")[0]["n"])
    worker.join()
    assert seen <= {9}
    assert query(store_root, "SELECT count(*) AS n FROM calls") == [{"n": 9}]


def test_q20_of_two_compactors_one_works_and_the_other_says_so(make_run, store_root: Path) -> None:
    run = ended_run(make_run)
    (run.run_dir / "parquet").mkdir()
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", holder, str(run.run_dir / "parquet" / "lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert compact(run.run_dir).busy
        other.communicate()
    assert not compact(run.run_dir).busy


def test_a_damaged_manifest_is_an_error_that_says_what_to_do(make_run, store_root: Path) -> None:
    run = ended_run(make_run)
    compact(run.run_dir)
    (run.run_dir / "parquet" / "manifest.json").write_text("{")
    with pytest.raises(InfraError, match="damaged"):
        query(store_root, "FROM runs")


def test_parquet_made_before_a_column_was_declared_is_still_read(make_run, store_root: Path) -> None:
    run = ended_run(make_run)
    compact(run.run_dir)
    (path,) = (run.run_dir / "parquet").glob("grade-*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["details"]), path)
    assert query(store_root, "SELECT DISTINCT reward, details FROM grades") == [{"reward": 1.0, "details": None}]
