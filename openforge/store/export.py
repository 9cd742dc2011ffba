"""A run as files for others: Parquet, JSON lines, a DuckDB file, rows for supervised training, one HTML page.

Each file appears whole under its name or not at all. Ids, masks and rewards leave as they were recorded; nothing is
rendered, cut or filled in. Does not know what a trainer does with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import duckdb
import pyarrow as pa

from openforge.errors import UsageError
from openforge.store.connect import query, with_views
from openforge.store.page.build import LIMIT, SIZE_BYTES, build
from openforge.store.rows import write_query
from openforge.store.schema import BY_NAME, VIEWS
from openforge.store.sql import SafeSql
from openforge.store.whole import whole_file, whole_folder

Format = Literal["parquet", "jsonl", "duckdb", "sft", "html"]
_DERIVED = {"unreadable"}  # tells about the files themselves
_SFT = "token_ids AS input_ids, loss_mask, rollout_id, task, harness, reward, run_id, attempt, sample_id, weight"
_PARQUET = "FORMAT parquet, COMPRESSION zstd"
_STORAGE = "v1.2.0"  # older DuckDB programs read it too

_JSON_LINES = """
    SELECT r.*, m.messages
    FROM rollouts r LEFT JOIN (
        SELECT run_id, rollout_id, attempt, list({'call_id': call_id, 'position': position, 'role': role, 'text': text,
            'reasoning': reasoning, 'tool_calls': tool_calls, 'tool_call_id': tool_call_id}
            ORDER BY seq, position) AS messages
        FROM messages GROUP BY ALL) m USING (run_id, rollout_id, attempt)
    ORDER BY r.run_id, r.rollout_id"""


@dataclass
class Exported:
    """What was written: rows by file name; and rows that were not, by reason."""

    dest: Path
    rows: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


def export(
    store_root: Path,
    run: str | None,
    fmt: Format,
    dest: Path,
    *,
    views: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
) -> Exported:
    """Write a run (id; None = all) to `dest`; raises UsageError.

    `parquet` makes a folder, or one file of one view when `dest` ends in `.parquet` (default: samples). `where` filters
    `sft` rows by a condition over the view `samples`. `limit`: rollouts in an `html` page at most, as `build` has it.
    """
    if fmt not in get_args(Format):
        raise UsageError(f"there is no export format {fmt!r}", hint=f"choose one of {', '.join(get_args(Format))}")
    if unknown := set(views or ()) - BY_NAME.keys():
        raise UsageError(f"there is no view {', '.join(sorted(unknown))}", hint="`openforge sql` lists them")
    if where is not None and fmt != "sft":
        raise UsageError(
            "a condition applies to the sft format only", hint='use `openforge sql "select … where …" -o parquet`'
        )
    if limit is not None and fmt != "html":
        raise UsageError("a limit applies to the html format only", hint="leave --limit out")
    runs = None if run is None else [run]
    if fmt == "html":
        if run is None or views:
            raise UsageError("a page shows one whole run", hint="name a run, or `latest`, and no view")
        return with_views(store_root, lambda con: _page(con, run, dest, limit), runs=runs)
    if fmt == "sft":
        return _sft(store_root, runs, dest, where)
    names = list(views or [view.name for view in VIEWS if view.name not in _DERIVED])
    if fmt == "parquet" and dest.suffix == ".parquet":
        if views and len(views) > 1:
            raise UsageError(f"{dest} can hold one view", hint="name a folder to write several")
        return with_views(store_root, lambda con: _parquet_file(con, (views or ["samples"])[0], dest), runs=runs)
    write = {"parquet": _parquet_folder, "duckdb": _duckdb_file, "jsonl": _json_lines}[fmt]
    return with_views(store_root, lambda con: write(con, names, dest), runs=runs)


def export_rows(store_root: Path, runs: Sequence[str], keys: Sequence[tuple[str, str]], dest: Path) -> int:
    """Write the training rows of `keys` (rollout id, sample id) to the Parquet file `dest`, in the columns of `sft`.

    Returns how many there were. Raises InfraError when the files keep changing.
    """
    chosen = pa.table({"rollout_id": [key[0] for key in keys], "sample_id": [key[1] for key in keys]})
    sql = f"SELECT {_SFT} FROM samples SEMI JOIN chosen USING (rollout_id, sample_id) ORDER BY rollout_id, sample_id"

    def write(con: duckdb.DuckDBPyConnection) -> int:
        con.register("chosen", chosen)
        return _copy(con, sql, dest, _PARQUET)

    return with_views(store_root, write, runs=runs)


def _parquet_folder(con: duckdb.DuckDBPyConnection, names: Sequence[str], dest: Path) -> Exported:
    done = Exported(dest)
    with whole_folder(dest) as folder:
        for name in names:
            file = f"{name}.parquet"
            done.rows[file] = _copy_to(con, f"FROM {name}", folder / file, _PARQUET)
    return done


def _parquet_file(con: duckdb.DuckDBPyConnection, name: str, dest: Path) -> Exported:
    return Exported(dest, {dest.name: _copy(con, f"FROM {name}", dest, _PARQUET)})


def _json_lines(con: duckdb.DuckDBPyConnection, _names: Sequence[str], dest: Path) -> Exported:
    return Exported(dest, {dest.name: _copy(con, _JSON_LINES, dest, "FORMAT json")})


def _page(con: duckdb.DuckDBPyConnection, run: str, dest: Path, limit: int | None) -> Exported:
    again = f"openforge export {run} --html"
    with whole_file(dest) as temporary, temporary.open("wb") as file:
        built = build(con, file, limit, again)
    done = Exported(dest, {dest.name: built.rollouts})
    if hidden := built.total - built.rollouts:
        room = f" ({LIMIT} rollouts and {SIZE_BYTES // 10**6} MB, unless you say)" if limit is None else ""
        done.left_out[f"of {built.total} rollouts, with the highest rewards{room}: `{again} --limit 0` writes all"] = (
            hidden
        )
    return done


def _duckdb_file(con: duckdb.DuckDBPyConnection, names: Sequence[str], dest: Path) -> Exported:
    done = Exported(dest)
    with whole_file(dest) as temporary:
        con.execute(f"ATTACH {_quote(temporary)} AS export_file (STORAGE_VERSION '{_STORAGE}')")
        try:
            for name in names:
                con.execute(f"CREATE TABLE export_file.{name} AS FROM {name}")
                done.rows[name] = con.execute(f"SELECT count(*) FROM export_file.{name}").fetchall()[0][0]
        finally:
            con.execute("DETACH export_file")
    return done


def _sft(store_root: Path, runs: Sequence[str] | None, dest: Path, where: str | None) -> Exported:
    """Rows by the condition of a person, hence through the jail; then why the others are not among them."""
    condition = f"WHERE ({where}\n)" if where else ""
    sql = f"SELECT {_SFT} FROM samples {condition} ORDER BY rollout_id, sample_id"
    asked = SafeSql(store_root, runs=runs)
    taken = write_query(asked, sql, dest, timeout_s=3600, memory="4Gi", suffix=".parquet")
    total, ungraded = query(
        store_root, "SELECT count(*) AS total, count(*) FILTER (reward IS NULL) AS ungraded FROM samples", runs=runs
    )[0].values()
    done = Exported(dest, {dest.name: taken})
    if total > taken:
        note = f" ({ungraded} without a reward)" if ungraded else ""
        done.left_out[f"does not satisfy {where}{note}"] = total - taken
    refused = "SELECT reason, count(*) AS paths FROM refused WHERE what = 'sample' GROUP BY ALL ORDER BY ALL"
    for row in query(store_root, refused, runs=runs):
        done.left_out[f"no exact row: {row['reason']}"] = row["paths"]
    missing = "SELECT state, count(*) AS rollouts FROM rollouts WHERE samples = 0 GROUP BY ALL ORDER BY ALL"
    for row in query(store_root, missing, runs=runs):
        done.left_out[f"rollout {row['state']} without a sample"] = row["rollouts"]
    return done


def _copy(con: duckdb.DuckDBPyConnection, sql: str, dest: Path, options: str) -> int:
    with whole_file(dest) as temporary:
        return _copy_to(con, sql, temporary, options)


def _copy_to(con: duckdb.DuckDBPyConnection, sql: str, path: Path, options: str) -> int:
    (count,) = con.execute(f"COPY ({sql}) TO {_quote(path)} ({options})").fetchall()[0]
    return int(count)


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
