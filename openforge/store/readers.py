"""The SQL that reads the files of a snapshot: lines of segments, Parquet, vocabularies. Text only, opens nothing.

Each kind of record is read with its own columns only: what a reader costs a file grows with their number.
"""

from collections.abc import Iterable
from pathlib import Path

from openforge.store.schema import record_columns
from openforge.store.snapshot import Snapshot

_LINE = 16 << 20  # DuckDB reads lines up to twice this without being told of longer ones


def records_sql(snapshot: Snapshot, kind: str) -> str:
    """Every record of a kind: its Parquet files, and the lines of segments."""
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


def vocab_sql(snapshot: Snapshot) -> str:
    """The texts of token ids, by the hash of their vocabulary."""
    if not snapshot.vocabs:
        return values_sql([], {"hash": "VARCHAR", "token_id": "INTEGER", "text": "VARCHAR"})
    reader = _json_reader(snapshot.vocabs, {"token_id": "INTEGER", "text": "VARCHAR"}, ", filename = true")
    return f"SELECT parse_filename(filename, true) AS hash, token_id, text FROM {reader} WHERE token_id IS NOT NULL"


def live_sql(snapshot: Snapshot) -> str:
    """The writers that were alive."""
    return values_sql(snapshot.live, {"run_id": "VARCHAR", "recorder_id": "VARCHAR"})


def unreadable_sql(snapshot: Snapshot) -> str:
    """Which lines of the segments are no records, counted by file."""
    columns = {"run_id": "VARCHAR", "recorder_id": "VARCHAR", "segment": "VARCHAR", "lines": "BIGINT"}
    names = [(str(source.path), source.run_id, source.recorder_id, source.name) for source in snapshot.segments]
    known = values_sql(
        names, {"filename": "VARCHAR", "run_id": "VARCHAR", "recorder_id": "VARCHAR", "segment": "VARCHAR"}
    )
    parts = [values_sql(snapshot.unreadable, columns)]
    for paths, options, _ in _batches(snapshot):
        reader = _json_reader(paths, {"seq": "BIGINT", "kind": "VARCHAR"}, f"{options}, filename = true")
        parts.append(
            f"SELECT run_id, recorder_id, segment, count(*) FROM {reader} JOIN ({known}) USING (filename) "
            "WHERE seq IS NULL OR kind IS NULL GROUP BY ALL"
        )
    return " UNION ALL ".join(parts)


def _batches(snapshot: Snapshot) -> list[tuple[list[Path], str, str]]:
    """Segments that can be read in one go, with the reader's options and a condition that cuts off what overlaps."""
    plain = [source.path for source in snapshot.segments if source.size <= 2 * _LINE and source.end is None]
    found = [(plain, "", "")] if plain else []
    for source in snapshot.segments:
        if source.size > 2 * _LINE or source.end is not None:
            options = f", maximum_object_size = {source.size // 2 + 4096}" if source.size > 2 * _LINE else ""
            found.append(([source.path], options, "" if source.end is None else f" AND seq < {source.end}"))
    return found


def _json_reader(paths: list[Path], columns: dict[str, str], options: str = "") -> str:
    # A line that is no record comes back as NULLs: a required column tells them apart.
    spec = ", ".join(f"{_quote(name)}: {_quote(type_)}" for name, type_ in columns.items())
    fixed = f"format = 'newline_delimited', ignore_errors = true, columns = {{{spec}}}"
    return f"read_json({_list(paths)}, {fixed}{options})"


def values_sql(rows: Iterable[tuple[str | int, ...]], columns: dict[str, str]) -> str:
    """Rows as a query, typed also when there are none."""
    lines = [f"({', '.join(str(value) if isinstance(value, int) else _quote(value) for value in row)})" for row in rows]
    values = ", ".join([*lines, f"({', '.join(f'CAST(NULL AS {type_})' for type_ in columns.values())})"])
    return f"SELECT * FROM (VALUES {values}) AS t({', '.join(columns)}) WHERE {next(iter(columns))} IS NOT NULL"


def _list(paths: Iterable[Path]) -> str:
    return f"[{', '.join(_quote(_literal(path)) for path in paths)}]"


def _literal(path: Path) -> str:
    """A path as a pattern that matches itself only: DuckDB expands globs in names."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in str(path))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
