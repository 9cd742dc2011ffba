"""The rows of any query, a million of them if need be: only what is on the screen is made into text.

Everything in a cell is plain text on one line, shortened; `whole_value` gives all of it. Does not know the query.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual_fastdatatable import ArrowBackend

from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.rows import Rows

CUT = 200  # characters of a cell
WHOLE_CUT = 50_000  # characters of a value that is read by itself
_ITEMS = 24  # of a list in a cell
_WIDEST = 40  # cells of a column, more where there is room
_GAP = 2
_DIM = Style(dim=True)
_SAMPLED = 400  # rows that the widths are taken from
_ORDERED = ("order", "reverse")  # the query says the order


@dataclass(frozen=True)
class Layout:
    """A table as it will be drawn."""

    table: pa.Table
    widths: Sequence[int]
    widest: int


def lay_out(table: pa.Table, room: int) -> Layout:
    """Choose the columns' widths by looking at some rows; for any thread. `room`: the cells that there are for all."""
    count = table.num_rows
    chosen = [*range(min(count, _SAMPLED // 2)), *range(_SAMPLED // 2, count, max(1, 2 * count // _SAMPLED))]
    widths = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        texts = (cell_text(column[row]) for row in chosen)
        widths.append(max(cell_len(visible(name)), 1, *map(cell_len, texts)))
    widest = _WIDEST
    while widest < max(widths, default=0) and sum(min(width, widest + 1) + _GAP for width in widths) <= room:
        widest += 1
    return Layout(table, [min(width, widest) for width in widths], widest)


def cell_text(scalar: "pa.Scalar[Any]") -> str:
    """A value on one line, shortened; costs the same however large the value is."""
    if not scalar.is_valid:
        return "NULL"
    if isinstance(scalar, pa.StringScalar | pa.LargeStringScalar):
        buffer = scalar.as_buffer()
        text = buffer.slice(0, min(buffer.size, 4 * CUT)).to_pybytes().decode(errors="ignore")
        return _line(text, more=len(text) > CUT or buffer.size > 4 * CUT)
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar):
        values = scalar.values
        shown = ", ".join(cell_text(values[i]) for i in range(min(len(values), _ITEMS)))
        return _line(f"[{shown}{f', … {len(values)} in all' if len(values) > _ITEMS else ''}]")
    if isinstance(scalar, pa.StructScalar):
        return _line("{" + ", ".join(f"{name}: {cell_text(scalar[name])}" for name in scalar) + "}")
    return _line(_plain(_python(scalar)))


def _python(scalar: "pa.Scalar[Any]") -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError, ArithmeticError):  # a time that Python has no value for
        return scalar.cast(pa.string()).as_py()


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat(" ", "milliseconds")
    if isinstance(value, bytes):
        return value[:CUT].hex()
    return str(value)


def _line(text: str, *, more: bool = False) -> str:
    cut = visible(text[:CUT]).replace("\n", "⏎").replace("\t", " ")
    return cut + "…" if more or len(text) > CUT else cut


def whole_value(scalar: "pa.Scalar[Any]") -> str:
    """All of a value, with what is JSON laid out; only what is far too long to read is cut, which is said."""
    value = _python(scalar)
    if value is None:
        return "NULL"
    if isinstance(value, str):
        text = _laid_out(value)
    elif isinstance(value, list | dict):
        text = json.dumps(value, indent=2, default=_plain, ensure_ascii=False)
    else:
        text = value.hex() if isinstance(value, bytes) else str(value)
    left = len(text) - WHOLE_CUT
    return text if left <= 0 else f"{text[:WHOLE_CUT]}\n… {left} more characters; f7 writes them all"


def _laid_out(text: str) -> str:
    if text[:1] not in ("{", "[") or len(text) > WHOLE_CUT:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


class _Backend(ArrowBackend):
    """Measures nothing and makes no Python values of rows that nobody sees."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.table)
        self._widths = list(layout.widths)

    @property
    def column_content_widths(self) -> list[int]:
        return self._widths

    def get_cell_at(self, row_index: int, column_index: int) -> str:
        return cell_text(self.data[column_index][row_index])


class Results(Rows, inherit_bindings=False):
    """Shows a Layout; `enter` is the screen's own."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in bindings("grid") if isinstance(binding, Binding) and binding.action not in _ORDERED
    ]
    DEFAULT_CSS = "Results { height: 1fr; max-height: 100%; }"

    def __init__(self, layout: Layout) -> None:
        self.layout_shown = layout
        self._columns, self._names = layout.table.columns, layout.table.column_names
        types = layout.table.schema.types
        self._right = [
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in types
        ]
        super().__init__(
            backend=_Backend(layout),
            column_labels=[Text(visible(name)) for name in layout.table.column_names],
            cursor_type="cell",
            render_markup=False,
            max_column_content_width=layout.widest,
        )

    @property
    def at(self) -> tuple[int, int] | None:
        """Row and column under the cursor."""
        table = self.layout_shown.table
        row, column = self.cursor_row, self.cursor_column
        return (row, column) if row < table.num_rows and column < table.num_columns else None

    def title(self, column: int) -> str:
        return visible(self._names[column])

    def cell(self, row: int, column: int) -> tuple[str, Style]:
        scalar = self._columns[column][row]
        return cell_text(scalar), Style.null() if scalar.is_valid else _DIM

    def to_the_right(self, column: int) -> bool:
        return bool(self._right[column])
