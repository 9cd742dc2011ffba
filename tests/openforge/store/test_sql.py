"""A person's SQL in its jail: real processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from openforge.errors import InfraError, OpenForgeError, TimeLimitError, UsageError
from openforge.store.connect import new_connection, refresh
from openforge.store.jail import lock
from openforge.store.sql import SafeSql

pytestmark = pytest.mark.contract
SLOW = "SELECT count(*) FROM range(100000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"
STUBBORN = "SELECT list_sum(range(500000000))"  # DuckDB neither counts its memory nor interrupts it


def test_one_that_is_stopped_before_it_was_asked_says_so(safe: SafeSql, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = json.dumps

    def stop_first(request: object) -> str:
        safe.cancel()
        time.sleep(0.2)
        return dumps(request)

    monkeypatch.setattr("openforge.store.sql.json.dumps", stop_first)
    with pytest.raises(OpenForgeError, match="the query was stopped"):
        safe.query("SELECT 1")


@pytest.fixture
def safe(make_run, store_root: Path) -> SafeSql:
    make_run().rollout()
    return SafeSql(store_root)


def test_rows_come_as_arrow(safe: SafeSql) -> None:
    table = safe.query("SELECT role, count(*) AS n FROM messages GROUP BY ALL ORDER BY ALL")
    assert table.to_pylist() == [{"role": "assistant", "n": 3}, {"role": "user", "n": 3}]


def test_no_rows_have_columns(safe: SafeSql) -> None:
    assert safe.query("SELECT rollout_id, reward FROM rollouts WHERE false").column_names == ["rollout_id", "reward"]


def test_a_limit_is_kept_and_the_rest_is_not_made(safe: SafeSql) -> None:
    assert safe.query("SELECT * FROM range(1000000000000)", limit=10_000).num_rows == 10_000
    assert safe.query("SELECT * FROM tokens", limit=0).num_rows == 0


def test_rows_stream(safe: SafeSql) -> None:
    with safe.stream("SELECT * FROM range(10000000000)") as reader:
        assert reader.read_next_batch().num_rows > 0


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT *\nFROM rolouts", "LINE 2: FROM rolouts\n             ^"),
        ("SELECT rewrd\nFROM rollouts", "LINE 1: SELECT rewrd\n               ^"),
        ("SELECT foo(1)", "LINE 1: SELECT foo(1)\n               ^"),
        ("SELECT 1\nFROM FROM", "LINE 2: FROM FROM\n             ^"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(safe: SafeSql, sql: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        safe.query(sql)
    assert place in caught.value.summary


@pytest.mark.parametrize("many", [20_000, 500_000])
def test_a_query_that_fails_in_the_middle_is_an_error_not_fewer_rows(safe: SafeSql, many: int) -> None:
    sql = f"SELECT CAST(CASE WHEN range = {many} THEN 'x' ELSE '1' END AS INTEGER) FROM range(1000000)"
    with pytest.raises(UsageError, match="Could not convert string 'x'"):
        safe.query(sql)


def test_a_query_that_is_killed_between_two_batches_is_an_error_not_fewer_rows(safe: SafeSql) -> None:
    def read() -> None:
        with safe.stream("SELECT * FROM range(10000000000)") as reader:
            for number, _ in enumerate(reader):
                if number == 3:
                    safe.cancel()

    with pytest.raises(OpenForgeError, match="stopped"):
        read()


def test_a_query_that_takes_too_long_is_stopped(safe: SafeSql) -> None:
    before = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"longer than 1\.5 s") as caught:
        safe.query(SLOW, timeout_s=1.5)
    assert time.monotonic() - before < 8
    assert "--timeout" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_query_that_cannot_be_interrupted_is_stopped_too(safe: SafeSql) -> None:
    before = time.monotonic()
    with pytest.raises(OpenForgeError):
        safe.query(STUBBORN, timeout_s=2)
    assert time.monotonic() - before < 8


def test_another_thread_can_stop_it(safe: SafeSql) -> None:
    threading.Timer(1, safe.cancel).start()
    with pytest.raises(OpenForgeError, match="was stopped"):
        safe.query(SLOW, timeout_s=30)
    assert safe.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_q17_memory_is_bounded_and_the_error_says_what_to_do(safe: SafeSql) -> None:
    with pytest.raises(OpenForgeError, match="more memory than 100MiB") as caught:
        safe.query("SELECT list(i) OVER () FROM range(300000) t(i)", memory="100Mi")
    assert "--memory" in caught.value.hint


@pytest.mark.parametrize("memory", ["lots", "2GB"])
def test_a_memory_limit_that_is_none_is_refused(safe: SafeSql, memory: str) -> None:
    with pytest.raises(UsageError):
        safe.query("SELECT 1", memory=memory)


def test_q23_no_extension_is_ever_loaded(safe: SafeSql) -> None:
    for sql in ("INSTALL quack", "LOAD quack", "SELECT * FROM 'https://example.com/x.parquet'"):
        with pytest.raises(UsageError):
            safe.query(sql)


def test_no_file_can_be_read_and_no_variable_seen(safe: SafeSql, store_root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    segment = next(store_root.glob("runs/*/journal/*/*"))
    for sql in (f"FROM '{secret}'", f"FROM '{segment}'", f"SUMMARIZE '{secret}'", "SELECT getenv('HOME')", "FROM os"):
        with pytest.raises(UsageError):
            safe.query(sql)


def test_behind_the_guard_duckdb_itself_opens_only_the_segments(make_run, store_root: Path, tmp_path: Path) -> None:
    run = make_run()
    run.rollout()
    (run.run_dir / "orchestrator.json").write_text('{"token": "secret"}')
    con = new_connection()
    lock(con, refresh(con, store_root))
    assert con.execute("SELECT count(*) FROM calls").fetchall() == [(3,)]
    here = tmp_path / "out.csv"
    for sql in (
        "SELECT * FROM read_text('/etc/hostname')",
        f"SELECT * FROM read_text('{run.run_dir / 'orchestrator.json'}')",
        f"SELECT * FROM glob('{run.run_dir}/*')",
        f"WITH a AS (COPY (SELECT 1) TO '{here}') SELECT 1",
        f"COPY (SELECT 1) TO '{here}'",
        f"ATTACH '{here}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '1TB'",
        "SET enable_external_access = true",
        "CREATE TABLE t AS SELECT 1",
    ):
        with pytest.raises(duckdb.Error):
            con.execute(sql).fetchall()
        con.execute("ROLLBACK")
        con.execute("BEGIN TRANSACTION READ ONLY")
    assert not here.exists()


def test_the_process_gets_no_variables_and_leaves_nothing(
    safe: SafeSql, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SECRET_API_KEY", "hush")
    with safe.stream("SELECT * FROM range(100000000)") as reader:
        reader.read_next_batch()
        assert safe._process is not None
        environment = Path(f"/proc/{safe._process.pid}/environ")
        assert not environment.exists() or b"hush" not in environment.read_bytes()
    assert list(tmp_path.glob("openforge-sql-*")) == []


def test_two_queries_at_once(safe: SafeSql, store_root: Path) -> None:
    found: list[int] = []
    sql = "SELECT count(*) AS n FROM calls"
    threads = [
        threading.Thread(target=lambda: found.append(SafeSql(store_root).query(sql)["n"][0].as_py())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3, 3, 3]


def test_ctrl_c_stops_the_query_and_ends_with_130(safe: SafeSql, store_root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openforge.store.sql import SafeSql\n"
        "try: SafeSql(Path(sys.argv[1])).query(sys.argv[2], timeout_s=60)\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(store_root), SLOW]) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text().strip() != "")
        jail = Path("/proc") / children.read_text().split()[0]
        wait_until(lambda: len(list((jail / "task").iterdir())) > 1)  # DuckDB's threads: the query is being run
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=15) == 130
    # Dead at once; perhaps not yet collected by whoever inherited it.
    assert not jail.exists() or (jail / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_jail_that_dies_is_an_error_that_may_be_tried_again(safe: SafeSql) -> None:
    def kill() -> None:
        while safe._process is None:
            time.sleep(0.01)
        time.sleep(1)
        os.kill(safe._process.pid, signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(InfraError, match="code -9"):
        safe.query(SLOW, timeout_s=30)


def test_the_answer_is_plain_data(safe: SafeSql) -> None:
    table = safe.query("SELECT tool_calls, request FROM messages JOIN calls USING (call_id) WHERE role = 'assistant'")
    assert json.loads(table["request"][0].as_py())["model"] == "m"
    assert table["tool_calls"][0].as_py()[0]["name"] == "shell"
