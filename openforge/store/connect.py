"""A private in-memory DuckDB over the files of a store; nothing is locked, so any number of processes may do this.

A connection sees the files that existed when it was made (`refresh` looks again); lines that are appended to an open
segment are seen by every later query. Of a compacted run the Parquet files are read, of the rest the segments:
each record exactly once. Does not know what the views mean, nor who asks.
"""

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb

from openforge.errors import InfraError
from openforge.ids import resolve_run
from openforge.journal.records import KINDS
from openforge.journal.segments import Segment, all_segments
from openforge.store.schema import raw_name, record_columns
from openforge.store.views import create_statements

TRIES = 5  # a segment may be sealed, that is renamed, between being listed and being opened
_BLOCK = 1 << 16
_LINE = 16 << 20  # DuckDB reads lines up to twice this without being told of larger ones
_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # `from x` must never read a Python variable
}


@dataclass
class Snapshot:
    """The files of some runs as they were listed at one moment."""

    parquet: dict[str, list[Path]] = field(default_factory=dict)  # by kind
    segments: list[tuple[Path, int, int | None]] = field(default_factory=list)  # path, size, seq to stop at
    vocabs: list[Path] = field(default_factory=list)
    live: list[tuple[str, str]] = field(default_factory=list)  # (run_id, recorder_id) of writers that hold their file
    unreadable: list[tuple[str, str, str, int]] = field(default_factory=list)  # of compacted segments

    def files(self) -> list[Path]:
        return [
            *(path for paths in self.parquet.values() for path in paths),
            *(row[0] for row in self.segments),
            *self.vocabs,
        ]


def known_runs(store_root: Path) -> list[str]:
    """The run ids in a store, oldest first."""
    try:
        with os.scandir(store_root / "runs") as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def find_run(store_root: Path, text: str) -> str:
    """The run a person meant by an id, a unique prefix or `latest`; raises UsageError."""
    return resolve_run(text, known_runs(store_root))


def connect(store_root: Path, *, runs: Iterable[str] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with every view over `runs` (ids; default: all of the store). Made for trusted SQL; see sql.py."""
    con = new_connection()
    refresh(con, store_root, runs=runs)
    return con


def new_connection(**config: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB that never reaches for the network, without views yet."""
    spill = Path(tempfile.gettempdir()) / f"openforge-{os.getpid()}"  # made on demand, removed again
    con = duckdb.connect(config={"temp_directory": str(spill), **_CONFIG, **config})
    con.execute("CREATE SCHEMA raw")
    return con


def query(
    store_root: Path, sql: str, parameters: Any = None, *, runs: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Rows of one trusted query, over the files as they are now."""

    def ask(con: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        return [dict(row) for row in con.sql(sql, params=parameters).to_arrow_table().to_pylist()]

    return with_views(store_root, ask, runs=runs)


def with_views[T](
    store_root: Path, work: Callable[[duckdb.DuckDBPyConnection], T], *, runs: Iterable[str] | None = None
) -> T:
    """Do `work` over the files as they are now, and again when one was sealed (renamed) meanwhile. Raises InfraError."""
    wanted = None if runs is None else list(runs)
    for left in reversed(range(TRIES)):
        con = connect(store_root, runs=wanted)
        try:
            return work(con)
        except duckdb.IOException as error:
            if left == 0:
                raise vanished(error) from None
        finally:
            con.close()
    raise AssertionError("unreachable")


def vanished(error: duckdb.IOException) -> InfraError:
    """What to say when files keep going away under a query."""
    return InfraError(f"the files of the store keep changing: {error}", hint="was a run deleted? run the query again")


def refresh(con: duckdb.DuckDBPyConnection, store_root: Path, *, runs: Iterable[str] | None = None) -> Snapshot:
    """List the files again and point the views at them."""
    snapshot = take_snapshot(store_root, runs)
    for kind in KINDS:
        con.execute(f"CREATE OR REPLACE VIEW {raw_name(kind)} AS {records_sql(snapshot, kind)}")
    con.execute(f"CREATE OR REPLACE VIEW raw._vocab AS {_vocab_sql(snapshot.vocabs)}")
    con.execute(
        f"CREATE OR REPLACE VIEW raw._live AS {_values_sql(snapshot.live, 'run_id VARCHAR, recorder_id VARCHAR')}"
    )
    con.execute(f"CREATE OR REPLACE VIEW raw._unreadable AS {unreadable_sql(snapshot)}")
    for statement in create_statements():
        con.execute(statement)
    return snapshot


def take_snapshot(store_root: Path, runs: Iterable[str] | None = None) -> Snapshot:
    """List the files to read; a run that vanishes while it is listed is left out."""
    snapshot = Snapshot(vocabs=sorted((store_root / "vocab").glob("*.jsonl")))
    for run_id in known_runs(store_root) if runs is None else runs:
        run_dir = store_root / "runs" / run_id
        try:
            _add_run(snapshot, run_id, run_dir)
        except FileNotFoundError:
            continue
    return snapshot


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """What compaction has made of a run: `{"segments": {name: unreadable lines}, "files": {kind: [name …]}}`."""
    path = run_dir / "parquet" / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {"segments": {}, "files": {}}
    except ValueError as error:
        raise InfraError(f"{path} is damaged: {error}", hint="delete it; the next compaction makes it again") from None
    return manifest


def segment_key(segment: Segment) -> str:
    """The name of a segment in the manifest: the same while it is open and after."""
    return f"{segment.recorder_id}/{segment.first_seq:012d}"


def _add_run(snapshot: Snapshot, run_id: str, run_dir: Path) -> None:
    # Segments first, the manifest second: what is compacted in between is then read as Parquet, not twice.
    listed = list(all_segments(run_dir))
    manifest = read_manifest(run_dir)
    for kind, names in manifest["files"].items():
        snapshot.parquet.setdefault(kind, []).extend(run_dir / "parquet" / name for name in names)
    for key, lines in manifest["segments"].items():
        if lines:
            recorder_id, _, name = key.partition("/")
            snapshot.unreadable.append((run_id, recorder_id, name, lines))
    for recorder_id, group in groupby(listed, key=lambda segment: segment.recorder_id):
        segments = list(group)
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if segment_key(segment) in manifest["segments"]:
                continue
            path = segment.path if segment.path.exists() else segment.sealed_path()
            if not segment.sealed and _is_locked(path):
                snapshot.live.append((run_id, recorder_id))
            end = following.first_seq if following and (last_seq(path) or 0) >= following.first_seq else None
            snapshot.segments.append((path, path.stat().st_size, end))


def last_seq(path: Path) -> int | None:
    """The seq of the last whole line of a segment. A segment that reaches into the next one was shipped twice."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        data = b""
        while end > 0 and data.rstrip(b"\n").count(b"\n") < 1:
            start = max(0, end - _BLOCK)
            file.seek(start)
            data, end = file.read(end - start) + data, start
    found = re.findall(rb'(?:^|\n)\{"v":\d+,"recorder_id":"[^"]*","seq":(\d+)', data)
    return int(found[-1]) if found else None


def _is_locked(path: Path) -> bool:
    """Whether a living writer holds this segment."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def records_sql(snapshot: Snapshot, kind: str) -> str:
    """Every record of a kind: Parquet and segments, each record once."""
    columns = record_columns(kind)
    names = ", ".join(columns)
    nothing = f"SELECT {', '.join(f'CAST(NULL AS {type_}) AS {name}' for name, type_ in columns.items())} WHERE false"
    parts = []
    if files := snapshot.parquet.get(kind):
        # Older files may lack a column that was declared since: by name, so that it is NULL there.
        reader = f"read_parquet({_list(files)}, union_by_name = true)"
        parts.append(f"SELECT {names} FROM ({nothing} UNION ALL BY NAME FROM {reader})")
    for paths, options, bound in _batches(snapshot):
        reader = _json_reader(paths, columns, options)
        parts.append(f"SELECT {names} FROM {reader} WHERE kind = '{kind}' AND seq IS NOT NULL{bound}")
    return " UNION ALL ".join(parts) or nothing


def _batches(snapshot: Snapshot) -> list[tuple[list[Path], str, str]]:
    """Segments that can be read in one go, with the reader's options and a condition that cuts off what overlaps."""
    plain = [path for path, size, end in snapshot.segments if size <= 2 * _LINE and end is None]
    found = [(plain, "", "")] if plain else []
    for path, size, end in snapshot.segments:
        if size > 2 * _LINE or end is not None:
            options = f", maximum_object_size = {size // 2 + 1}" if size > 2 * _LINE else ""
            found.append(([path], options, "" if end is None else f" AND seq < {end}"))
    return found


def _json_reader(paths: list[Path], columns: dict[str, str], options: str = "") -> str:
    # A line that is no record comes back as NULLs: a required column tells them apart.
    spec = ", ".join(f"{_quote(name)}: {_quote(type_)}" for name, type_ in columns.items())
    return (
        f"read_json({_list(paths)}, format = 'newline_delimited', ignore_errors = true, columns = {{{spec}}}{options})"
    )


def _vocab_sql(paths: list[Path]) -> str:
    if not paths:
        return _values_sql([], "hash VARCHAR, token_id INTEGER, text VARCHAR")
    reader = _json_reader(paths, {"token_id": "INTEGER", "text": "VARCHAR"}, ", filename = true")
    return f"SELECT parse_filename(filename, true) AS hash, token_id, text FROM {reader} WHERE token_id IS NOT NULL"


def unreadable_sql(snapshot: Snapshot) -> str:
    """Which lines of the segments are no records, counted by file."""
    parts = [_values_sql(snapshot.unreadable, "run_id VARCHAR, recorder_id VARCHAR, segment VARCHAR, lines BIGINT")]
    for paths, options, _ in _batches(snapshot):
        reader = _json_reader(paths, {"seq": "BIGINT", "kind": "VARCHAR"}, f"{options}, filename = true")
        parts.append(
            "SELECT list_extract(string_split(filename, '/'), -4), list_extract(string_split(filename, '/'), -2), "
            f"parse_filename(filename), count(*) FROM {reader} WHERE seq IS NULL OR kind IS NULL GROUP BY filename"
        )
    return " UNION ALL ".join(parts)


def _values_sql(rows: Iterable[tuple[str | int, ...]], columns: str) -> str:
    names = [column.split()[0] for column in columns.split(", ")]
    nothing = ", ".join(f"CAST(NULL AS {column.split()[1]})" for column in columns.split(", "))
    lines = [f"({', '.join(str(value) if isinstance(value, int) else _quote(value) for value in row)})" for row in rows]
    values = ", ".join([*lines, f"({nothing})"])
    return f"SELECT * FROM (VALUES {values}) AS t({', '.join(names)}) WHERE {names[0]} IS NOT NULL"


def _list(paths: Iterable[Path]) -> str:
    return f"[{', '.join(_quote(str(path)) for path in paths)}]"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
