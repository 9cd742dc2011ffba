"""A private in-memory DuckDB over the files of a store; nothing is locked, so any number of processes may do this.

A connection sees the files that existed when it was made (`refresh` looks again); lines that are appended to an open
segment are seen by every later query. Does not know what the views mean, nor who asks.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import duckdb
import pyarrow as pa

from openforge.errors import InfraError
from openforge.ids import resolve_run
from openforge.journal.records import KINDS
from openforge.store import readers
from openforge.store.schema import raw_name
from openforge.store.snapshot import Snapshot, known_runs, take_snapshot
from openforge.store.views import create_statements

_BATCH_ROWS = 500
TRIES = 5  # a segment may be sealed, that is renamed, between being listed and being opened
GONE = (duckdb.IOException, duckdb.PermissionException)  # how DuckDB names a file that is no longer there
_HELD: WeakKeyDictionary[duckdb.DuckDBPyConnection, Snapshot] = (
    WeakKeyDictionary()
)  # open files live as long as their reader
_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # `from x` must never read a Python variable
}


def find_run(store_root: Path, text: str) -> str:
    """The run a person meant by an id, a unique prefix or `latest`; raises UsageError."""
    return resolve_run(text, known_runs(store_root))


def connect(store_root: Path, *, runs: Iterable[str] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with every view over `runs` (ids; default: all of the store). Made for trusted SQL; see sql.py."""
    con = new_connection()
    refresh(con, store_root, runs=runs)
    return con


def query(
    store_root: Path, sql: str, parameters: Any = None, *, runs: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of one trusted query, over the files as they are now."""

    def ask(con: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        return rows_of(con.sql(sql, params=parameters).to_arrow_table())

    return with_views(store_root, ask, runs=runs)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, a batch at a time: Arrow holds Python's lock while it makes rows."""
    return [row for batch in table.to_batches(_BATCH_ROWS) for row in batch.to_pylist()]


def with_views[T](
    store_root: Path, work: Callable[[duckdb.DuckDBPyConnection], T], *, runs: Iterable[str] | None = None
) -> T:
    """Do `work` over the files as they are now, again when one was sealed (renamed) meanwhile. Raises InfraError."""
    wanted = None if runs is None else list(runs)
    con = new_connection()
    try:
        for left in reversed(range(TRIES)):
            refresh(con, store_root, runs=wanted)
            try:
                return work(con)
            except GONE as error:
                if left == 0:
                    raise vanished(error) from None
    finally:
        con.close()
    raise AssertionError("unreachable")


def vanished(error: duckdb.Error) -> InfraError:
    """What to say when files keep going away under a query."""
    return InfraError(f"the files of the store keep changing: {error}", hint="was a run deleted? run the query again")


def new_connection(**config: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB that never reaches for the network, with every view over nothing yet."""
    spill = Path(tempfile.gettempdir()) / f"openforge-{os.getpid()}"  # made on demand, removed again
    con = duckdb.connect(config={"temp_directory": str(spill), **_CONFIG, **config})
    con.execute("CREATE SCHEMA raw")
    point_at(con, Snapshot())
    for name, macro in _SOURCES.items():
        con.execute(f"CREATE VIEW {name} AS FROM {macro}()")
    for statement in create_statements():
        con.execute(statement)
    return con


def refresh(con: duckdb.DuckDBPyConnection, store_root: Path, *, runs: Iterable[str] | None = None) -> Snapshot:
    """List the files again and point the views at them. Raises InfraError when they keep changing."""
    wanted = None if runs is None else list(runs)
    for left in reversed(range(TRIES)):
        snapshot = take_snapshot(store_root, wanted)
        try:
            point_at(con, snapshot)
            _HELD[con] = snapshot
            return snapshot
        except GONE as error:  # DuckDB looks at the files when a macro is made
            if left == 0:
                raise vanished(error) from None
    raise AssertionError("unreachable")


_SOURCES = {
    **{raw_name(kind): f"_read_{kind.replace('.', '_')}" for kind in KINDS},
    "raw._vocab": "_read_vocabularies",
    "raw._live": "_read_live",
    "raw._unreadable": "_read_unreadable",
}


def point_at(con: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
    """Make the views read these files. Macros name them, so that the views above need not be made (and bound) again."""
    queries = {raw_name(kind): readers.records_sql(snapshot, kind) for kind in KINDS}
    queries["raw._vocab"] = readers.vocab_sql(snapshot)
    queries["raw._live"] = readers.live_sql(snapshot)
    queries["raw._unreadable"] = readers.unreadable_sql(snapshot)
    for name, sql in queries.items():
        con.execute(f"CREATE OR REPLACE MACRO {_SOURCES[name]}() AS TABLE {sql}")
