"""All rows of a person's query as one file: Parquet, CSV or JSON lines by its suffix, written as they come.

The file appears whole under its name or not at all. Does not know what was asked.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from openforge.errors import UsageError
from openforge.store.sql import SafeSql
from openforge.store.whole import whole_file, writing

SUFFIXES = (".parquet", ".csv", ".jsonl")


class _Writer(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def check_dest(dest: Path) -> None:
    """Raise UsageError for a file that cannot be meant."""
    if dest.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"what {dest.name or 'it'} shall hold is not known from its name", hint=f"end it in {', '.join(SUFFIXES)}"
        )
    if dest.is_dir():
        raise UsageError(f"{dest} is a folder", hint="name a file")


def write_query(
    asked: SafeSql,
    sql: str,
    dest: Path,
    *,
    timeout_s: float,
    memory: str = "2Gi",
    suffix: str = "",
    told: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write every row, in the format of `suffix` (default: that of `dest`); returns how many.

    `told` hears how many there are so far. Raises UsageError, TimeLimitError, InfraError; OpenForgeError when `asked`
    is cancelled.
    """
    if not suffix:
        check_dest(dest)
    rows = 0
    with whole_file(dest) as temporary, asked.stream(sql, timeout_s, memory) as reader:
        with writing(dest):
            writer = _open(temporary, suffix or dest.suffix.lower(), reader.schema)
        for batch in reader:
            with writing(dest):  # here, or the stream would be blamed
                writer.write_batch(batch)
            rows += batch.num_rows
            told(rows)
        with writing(dest):
            writer.close()
    return rows


def _open(path: Path, suffix: str, schema: pa.Schema) -> _Writer:
    if suffix == ".parquet":
        writer: _Writer = pq.ParquetWriter(path, schema, compression="zstd")
        return writer
    return _Csv(path, schema) if suffix == ".csv" else _JsonLines(path)


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._file.writelines(orjson.dumps(row, default=_plain) + b"\n" for row in batch.to_pylist())

    def close(self) -> None:
        self._file.close()


class _Csv:
    """What CSV has no notation for (lists, structures, bytes) is written as JSON."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._nested = {i for i, field in enumerate(schema) if _has_no_notation(field.type)}
        fields = [pa.field(f.name, pa.string()) if i in self._nested else f for i, f in enumerate(schema)]
        self._schema = pa.schema(fields)
        self._writer = pyarrow.csv.CSVWriter(path, self._schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [_as_json(column) if i in self._nested else column for i, column in enumerate(batch.columns)]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _has_no_notation(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_) or pa.types.is_binary(type_) or isinstance(type_, pa.BaseExtensionType))


def _as_json(column: pa.Array) -> pa.Array:
    values = column.to_pylist()
    return pa.array(
        [
            None if value is None else value if isinstance(value, str) else orjson.dumps(value, default=_plain).decode()
            for value in values
        ],
        pa.string(),
    )


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
