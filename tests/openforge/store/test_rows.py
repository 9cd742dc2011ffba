import json
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from openforge.errors import InfraError, OpenForgeError, UsageError
from openforge.store.rows import write_query
from openforge.store.sql import SafeSql

pytestmark = pytest.mark.contract
ROWS = "SELECT range AS n, {'a': [range]} AS s, 'x,\"y' AS t, NULL AS nothing, 'e'::BLOB AS b FROM range(20000)"


@pytest.fixture
def safe(store_root: Path) -> SafeSql:
    return SafeSql(store_root)


def write(safe: SafeSql, sql: str, dest: Path, **options: object) -> int:
    return write_query(safe, sql, dest, timeout_s=60, **options)  # type: ignore[arg-type]


def test_each_format_holds_every_row(safe: SafeSql, tmp_path: Path) -> None:
    told: list[int] = []
    assert write(safe, ROWS, tmp_path / "rows.parquet", told=told.append) == 20000
    assert told[-1] == 20000
    assert len(told) > 1
    assert pq.read_table(tmp_path / "rows.parquet").slice(19999).to_pylist() == [
        {"n": 19999, "s": {"a": [19999]}, "t": 'x,"y', "nothing": None, "b": b"e"}
    ]
    assert write(safe, ROWS, tmp_path / "rows.jsonl") == 20000
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == 20000
    assert json.loads(lines[7]) == {"n": 7, "s": {"a": [7]}, "t": 'x,"y', "nothing": None, "b": "65"}
    assert write(safe, ROWS, tmp_path / "rows.csv") == 20000
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0] == '"n","s","t","nothing","b"'
    assert lines[20000] == '19999,"{""a"":[19999]}","x,""y",,"""65"""'


def test_no_rows_are_a_file_with_columns(safe: SafeSql, tmp_path: Path) -> None:
    assert write(safe, "SELECT run_id, state FROM runs", tmp_path / "none.parquet") == 0
    assert pq.read_table(tmp_path / "none.parquet").column_names == ["run_id", "state"]
    assert write(safe, "SELECT run_id, state FROM runs", tmp_path / "none.csv") == 0
    assert (tmp_path / "none.csv").read_text() == '"run_id","state"\n'


@pytest.mark.parametrize("name", ["rows", "rows.xlsx", "rows.parquet.gz"])
def test_a_name_that_says_no_format_is_refused(safe: SafeSql, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not known from its name") as caught:
        write(safe, "SELECT 1", tmp_path / name)
    assert ".jsonl" in caught.value.hint
    assert not list(tmp_path.glob("rows*"))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_full_disk_is_named_and_leaves_nothing(safe: SafeSql, full_disk: Path, suffix: str) -> None:
    dest = full_disk / "new" / f"rows{suffix}"
    with pytest.raises(InfraError, match=r"cannot be written: File too large"):
        write(safe, "SELECT range, random() FROM range(200000)", dest)
    assert not dest.parent.exists()


def test_a_wrong_query_leaves_the_old_file(safe: SafeSql, tmp_path: Path) -> None:
    dest = tmp_path / "rows.csv"
    dest.write_text("old")
    with pytest.raises(UsageError, match="nope"):
        write(safe, "SELECT * FROM nope", dest)
    with pytest.raises(OpenForgeError):
        write(safe, "SELECT CASE WHEN range = 900000 THEN error('broken') ELSE 'x' END FROM range(1000000)", dest)
    assert dest.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if "rows" in path.name] == ["rows.csv"]


def test_it_can_be_stopped(safe: SafeSql, tmp_path: Path) -> None:
    begun = threading.Event()

    def stop() -> None:
        begun.wait(30)
        safe.cancel()

    thread = threading.Thread(target=stop)
    thread.start()
    before = time.monotonic()
    with pytest.raises(OpenForgeError, match="stopped"):
        write(safe, "SELECT * FROM range(100000000000)", tmp_path / "rows.jsonl", told=lambda rows: begun.set())
    thread.join()
    assert time.monotonic() - before < 30
    assert not (tmp_path / "rows.jsonl").exists()
