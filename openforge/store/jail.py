"""One person's query in a process of its own: `python -m openforge.store.jail`, a request as JSON on stdin.

Rows leave as an Arrow stream on stdout, a failure as one line of JSON on stderr. The DuckDB in here can open the
segments, Parquet files and vocabularies that were listed, and nothing else; its configuration is locked. That it is a
process is what makes limits true: DuckDB counts not all of its memory, and not every function can be interrupted.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from openforge.errors import OpenForgeError, UsageError
from openforge.store import guard
from openforge.store.connect import GONE, TRIES, new_connection, refresh, vanished
from openforge.store.snapshot import Snapshot

_BATCH_ROWS = 8192
_HEADROOM = 3 << 30  # threads' stacks, Python and Arrow beside what DuckDB counts


def run(request: dict[str, Any]) -> None:
    """Answer one request on stdout; raises OpenForgeError."""
    for left in reversed(range(TRIES)):
        con = new_connection(
            memory_limit=request["memory"],
            temp_directory=request["spill_dir"],
            max_temp_directory_size=request["spill"],
        )
        guard.check(request["sql"], table_functions(con))
        snapshot = refresh(con, Path(request["store_root"]), runs=request["runs"])
        lock(con, snapshot)
        try:
            return _answer(con, request)
        except BrokenPipeError:
            raise
        except GONE as error:
            if isinstance(error, duckdb.PermissionException) and not any(
                str(p) in str(error) for p in snapshot.files()
            ):
                raise UsageError(f"only the views may be read: {error}".partition("\n")[0], hint=guard.HINT) from None
            if left == 0:
                raise vanished(error) from None
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            raise _told(_with_its_place(con, request["sql"], error), request["memory"]) from None


def _with_its_place(con: duckdb.DuckDBPyConnection, sql: str, error: Exception) -> Exception:
    """The same error with the line and the caret: DuckDB 2.0 leaves them out of what `con.sql` raises."""
    if isinstance(error, duckdb.CatalogException | duckdb.BinderException):  # of binding, so that nothing runs twice
        try:
            con.execute(sql)
        except duckdb.Error as again:
            return again
    return error


def _told(error: Exception, memory: str) -> OpenForgeError:
    """DuckDB's errors reach us as its own or, from the middle of a stream, as Arrow's."""
    if isinstance(error, MemoryError) or "Out of Memory" in str(error) or "bad allocation" in str(error):
        hint = "ask for fewer rows or columns, one run (--run) or one rollout, or allow more (--memory)"
        return OpenForgeError(f"the query needs more memory than {memory}", hint=hint)
    return guard.explain(error)


def table_functions(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Every function that may stand in FROM."""
    kinds = "('table', 'table_macro', 'pragma')"
    rows = con.execute(
        f"SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN {kinds}"
    ).fetchall()
    return [row[0] for row in rows]


def lock(con: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
    """From here on `con` reads these files and no others, writes nothing, and keeps its settings."""
    paths = ", ".join("'" + str(path).replace("'", "''") + "'" for path in snapshot.files())
    con.execute(f"SET allowed_paths = [{paths}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    con.execute("BEGIN TRANSACTION READ ONLY")


def _answer(con: duckdb.DuckDBPyConnection, request: dict[str, Any]) -> None:
    left = request["limit"] if request["limit"] is not None else sys.maxsize
    reader = con.sql(request["sql"]).to_arrow_reader(min(_BATCH_ROWS, left or 1))
    first = next(iter(reader), None)  # whatever goes wrong at the start is said before a byte has left
    with pa.ipc.new_stream(sys.stdout.buffer, reader.schema) as out:
        batch = first
        while batch is not None and left > 0:
            out.write_batch(batch.slice(0, left))
            left -= batch.num_rows
            batch = next(iter(reader), None) if left > 0 else None


def main() -> int:
    request = json.load(sys.stdin)
    signal.alarm(int(request["timeout_s"]) + 5)  # should the process that asked be gone by then
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (request["memory_bytes"] + _HEADROOM,) * 2)
    try:
        run(request)
        sys.stdout.flush()
    except OpenForgeError as error:
        json.dump({"kind": type(error).__name__, "summary": error.summary, "hint": error.hint}, sys.stderr)
        return 1
    except BrokenPipeError:
        pass  # whoever asked has enough
    os._exit(0)  # not waiting for threads that may still scan


if __name__ == "__main__":
    sys.exit(main())
