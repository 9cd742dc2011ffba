"""A DataTable that draws a row at a time, straight from its cells: a screen takes some 15 ms, cell by cell 130.

A subclass says what stands in a cell. Does not know where the rows come from.
"""

from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.strip import Strip
from textual_fastdatatable import DataTable

_HEADER = -1


class Rows(DataTable, inherit_bindings=False):
    """Subclasses give `title`, `cell` and, for numbers, `to_the_right`."""

    def __init__(self, **options: Any) -> None:
        self._strips: LRUCache[tuple[object, ...], _Row] = LRUCache(1000)
        super().__init__(**options)

    def title(self, column: int) -> str:
        """What stands above a column."""
        raise NotImplementedError

    def cell(self, row: int, column: int) -> tuple[str, Style]:
        """What stands in a cell, on one line."""
        raise NotImplementedError

    def to_the_right(self, column: int) -> bool:
        """Whether a column's text ends at its right."""
        return False

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        number = y - 1 + top if y else _HEADER
        width, base = self.size.width, self.rich_style
        if number >= self.row_count:
            return Strip.blank(width, base)
        marked = self.cursor_column if number == self.cursor_row else None
        key = (number, marked, self._update_count, base)
        if (strip := self._strips.get(key)) is None:
            strip = self._strips[key] = self._strip(number, base)
        return strip.crop(left, left + width).adjust_cell_length(width, strip.row_style)

    def _strip(self, number: int, base: Style) -> "_Row":
        cursor = base + self.get_component_rich_style("datatable--cursor")
        whole = number == self.cursor_row and self.cursor_type == "row"
        style = base + self.get_component_rich_style("datatable--header") if number == _HEADER else base
        style = cursor if whole else style
        segments = []
        for at, shown in enumerate(self.ordered_columns):
            text, color = self.cell(number, at) if number != _HEADER else (self.title(at), Style.null())
            room = shown.render_width - 2
            if (wide := cell_len(text)) > room:
                text = f"{set_cell_size(text, room - 1)}…"
            elif self.to_the_right(at):
                text = " " * (room - wide) + text
            else:
                text = set_cell_size(text, room)
            here = cursor if (number, at) == (self.cursor_row, self.cursor_column) else style
            meta = Style.from_meta({"row": number, "column": at})
            segments.append(Segment(f" {text} ", here + color + meta))
        return _Row(segments, style)

    def _clear_caches(self) -> None:
        super()._clear_caches()
        self._strips.clear()


class _Row(Strip):
    """A row's strip, and the style that goes on to its right."""

    def __init__(self, segments: list[Segment], row_style: Style) -> None:
        super().__init__(segments)
        self.row_style = row_style
