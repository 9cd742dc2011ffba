"""A result of two columns as a chart: bars for names, a line over numbers or time. Pure; does not draw."""

from dataclasses import dataclass

import pyarrow as pa

from openforge.errors import UsageError

MOST_BARS = 1000
MOST_POINTS = 100_000


@dataclass(frozen=True)
class Bars:
    title: str
    labels: list[str]
    values: list[float | None]


@dataclass(frozen=True)
class Line:
    """`x_title` says what x counts."""

    title: str
    x_title: str
    name: str
    xs: list[float]
    ys: list[float | None]


def chart_of(table: pa.Table) -> Bars | Line:
    """Raises UsageError, which says why there is none."""
    if table.num_columns != 2:
        raise UsageError(
            f"a chart needs two columns, this has {table.num_columns}",
            hint="select a name, number or time, and a number",
        )
    first, second = table.schema.types
    x_name, y_name = table.column_names
    if not _is_number(second):
        raise UsageError(f"a chart needs a number in the second column; {y_name} is {second}")
    if not table.num_rows:
        raise UsageError("there are no rows to chart")
    title = f"{y_name} by {x_name}"
    if _is_number(first) or pa.types.is_timestamp(first) or pa.types.is_date(first):
        return _line(table, title)
    if pa.types.is_nested(first):
        raise UsageError(f"a chart needs a name, a number or a time in the first column; {x_name} is {first}")
    some = table.slice(0, MOST_BARS)
    labels = ["NULL" if name is None else str(name) for name in some.column(0).to_pylist()]
    return Bars(_said(title, table, MOST_BARS), labels, _numbers(some.column(1)))


def _line(table: pa.Table, title: str) -> Line:
    some = table.filter(table.column(0).is_valid()).slice(0, MOST_POINTS)
    if not some.num_rows:
        raise UsageError(f"{table.column_names[0]} is NULL in every row")
    x_name, y_name = table.column_names
    kind = table.schema.types[0]
    if not _is_number(kind):
        times = some.column(0).cast(pa.timestamp("us"))
        micros = [float(value) for value in times.cast(pa.int64()).to_pylist()]
        first = min(micros)
        begun = pa.scalar(int(first), pa.timestamp("us")).as_py()
        unit, name = _unit((max(micros) - first) / 1e6)
        xs: list[float] = [(value - first) / 1e6 / unit for value in micros]
        x_name = f"{name} since {begun:%Y-%m-%d %H:%M:%S}"
    else:
        xs = [float(value) for value in some.column(0).to_pylist()]
    return Line(_said(title, table, MOST_POINTS), x_name, y_name, xs, _numbers(some.column(1)))


def _unit(seconds: float) -> tuple[float, str]:
    return next(
        (size, name)
        for most, size, name in (
            (300, 1, "s"),
            (4 * 3600, 60, "min"),
            (4 * 86400, 3600, "h"),
            (float("inf"), 86400, "d"),
        )
        if seconds <= most
    )


def _said(title: str, table: pa.Table, most: int) -> str:
    return title if table.num_rows <= most else f"{title}: the first {most:,} of {table.num_rows:,} rows"


def _numbers(column: pa.ChunkedArray) -> list[float | None]:
    return [None if value is None else float(value) for value in column.to_pylist()]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
