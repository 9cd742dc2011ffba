"""A table of rows that keeps its place: new rows come, the cursor stays on the row it was on.

Rows are made into text off the event loop (`lay_out`) and drawn from Arrow, so that a hundred thousand of them cost no
key press. Does not know what the rows are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from rich.style import Style
from textual.message import Message
from textual_fastdatatable import ArrowBackend, DataTable

from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.rows import Rows

type Row = dict[str, Any]

_CUT = 300  # characters of a cell; the whole value is one key away


@dataclass(frozen=True)
class Column:
    """How a value of a row is shown. `style` colours the cell by its value; `right` for numbers."""

    name: str
    title: str = ""
    text: Callable[[Any], str] | None = None
    style: Callable[[Any], str] | None = None
    right: bool = False


@dataclass(frozen=True)
class Layout:
    """Rows as they will be drawn."""

    rows: Sequence[Row]
    table: pa.Table
    place: dict[Any, int] = field(repr=False)


def lay_out(rows: Sequence[Row], columns: Sequence[Column], key: str) -> Layout:
    """Make rows ready to be shown; pure, for any thread."""
    cells: list[pa.Array] = []
    for column in columns:
        texts = [_cell(row.get(column.name), column) for row in rows]
        if column.right:
            wide = max(map(len, [*texts, column.title or column.name]))
            texts = [text.rjust(wide) for text in texts]
        cells.append(pa.array(texts, pa.string()))
    table = pa.Table.from_arrays(cells, names=[column.title or column.name for column in columns])
    return Layout(rows, table, {row.get(key): number for number, row in enumerate(rows)})


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return ""
    if column.text is not None:
        return column.text(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return visible(text[:_CUT]).replace("\n", "⏎").replace("\t", " ")


class Grid(Rows, inherit_bindings=False):
    """Shows a Layout. A click on the row under the cursor is Opened; `enter` is the screen's own."""

    BINDINGS = bindings("grid")
    DEFAULT_CSS = "Grid { height: 1fr; max-height: 100%; }"

    class Opened(Message):
        """The row under the cursor was asked for."""

        def __init__(self, grid: "Grid", row: Row) -> None:
            super().__init__()
            self.grid, self.row = grid, row

        @property
        def control(self) -> "Grid":
            return self.grid

    class Moved(Opened):
        """The cursor went to another row."""

    class Reordered(Message):
        """Another order was asked for."""

    def __init__(self, columns: Sequence[Column], key: str, *, id: str | None = None) -> None:
        self.columns, self.key = tuple(columns), key
        self.shown = lay_out([], self.columns, key)
        self.ordered_by: str | None = None
        self.descending = False
        super().__init__(
            backend=ArrowBackend(self.shown.table),
            cursor_type="row",
            render_markup=False,
            max_column_content_width=60,
            id=id,
        )

    def prepare(self, rows: Sequence[Row]) -> Layout:
        """`rows` in this grid's order and columns; for any thread."""
        if (name := self.ordered_by) is not None:
            rows = sorted(rows, key=lambda row: _rank(row.get(name)), reverse=self.descending)
        return lay_out(rows, self.columns, self.key)

    def show(self, layout: Layout) -> None:
        """Show these rows instead; the cursor stays on its row when that is still there."""
        before = self.current
        at = 0 if before is None else layout.place.get(before.get(self.key), min(self.cursor_row, len(layout.rows) - 1))
        top = self.scroll_offset.y
        y = top and top + at - self.cursor_row  # at the very top one sees what comes
        self.shown = layout
        self.backend = ArrowBackend(layout.table)
        self.backend.render_markup = False
        self._ordered_columns = None
        self._update_count += 1
        self._clear_caches()
        self._update_dimensions([])
        if layout.rows:
            with self.prevent(DataTable.RowHighlighted):
                self.move_cursor(row=max(at, 0))
            self.scroll_to(y=y, animate=False, force=True)
        self.refresh()
        if self.current != before:
            self._tell_moved()

    @property
    def order(self) -> tuple[str | None, bool]:
        """By which column, and whether the largest comes first."""
        return (self.ordered_by, self.descending)

    @property
    def current(self) -> Row | None:
        """The row under the cursor."""
        rows = self.shown.rows
        return rows[self.cursor_row] if 0 <= self.cursor_row < len(rows) else None

    def go_to(self, key: Any) -> bool:
        """Put the cursor on the row of this key; False when there is none."""
        at = self.shown.place.get(key)
        if at is not None:
            self.move_cursor(row=at)
        return at is not None

    def action_order(self) -> None:
        names = [None, *(column.name for column in self.columns)]
        self.ordered_by = names[(names.index(self.ordered_by) + 1) % len(names)]
        self.post_message(self.Reordered())

    def action_reverse(self) -> None:
        self.descending = not self.descending
        self.post_message(self.Reordered())

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._tell_moved()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        if (row := self.current) is not None:
            self.post_message(self.Opened(self, row))

    def _tell_moved(self) -> None:
        if (row := self.current) is not None:
            self.post_message(self.Moved(self, row))

    def title(self, column: int) -> str:
        return self.columns[column].title or self.columns[column].name

    def cell(self, row: int, column: int) -> tuple[str, Style]:
        told = self.columns[column]
        style = told.style(self.shown.rows[row].get(told.name)) if told.style else ""
        return self.shown.table.column(column)[row].as_py() or "", Style.parse(style)


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, str(value))
