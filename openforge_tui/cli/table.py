"""Tables for a terminal: what fits is shown whole, what does not is cut where it hurts least.

The first column and those that hold numbers are never cut. Text is cut from the right, then whole columns are left out
from the right. Cells are text already; does not know where they come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
LEAST = 24  # what a cut column keeps; less is no longer worth reading


@dataclass(frozen=True)
class Column:
    """A column's header and cells; `fixed`: never cut; `right`: set to the right, as numbers are."""

    header: str
    cells: tuple[str, ...]
    fixed: bool = False
    right: bool = False

    @property
    def width(self) -> int:
        """Terminal cells of the widest line."""
        from rich.cells import cell_len

        return max(map(cell_len, (self.header, *self.cells)))

    @property
    def empty(self) -> bool:
        return not any(self.cells)


@dataclass(frozen=True)
class Layout:
    """Which columns are shown, and how wide; `left_out` names the others, `cut` says whether text was shortened."""

    shown: tuple[tuple[Column, int], ...]
    left_out: tuple[str, ...]
    cut: bool


def fit(columns: Sequence[Column], width: int) -> Layout:
    """The columns that fit into `width` cells, the first always among them."""
    whole = [column.width for column in columns]
    if _total(whole) > width:  # what is empty says nothing
        columns = [column for number, column in enumerate(columns) if number == 0 or not column.empty]
        whole = [column.width for column in columns]
    count = len(columns)
    while count > 1 and _total(_least(columns, whole, count)) > width:
        count -= 1
    widths, over = whole[:count], _total(whole[:count]) - width
    for number in reversed(range(count)):
        least = _least(columns, whole, count)[number]
        taken = max(0, min(over, widths[number] - least))
        widths[number] -= taken
        over -= taken
    left_out = tuple(column.header for column in columns[count:])
    return Layout(tuple(zip(columns[:count], widths, strict=True)), left_out, widths != whole[:count])


def _least(columns: Sequence[Column], whole: Sequence[int], count: int) -> list[int]:
    return [
        wide if number == 0 or columns[number].fixed else min(wide, LEAST) for number, wide in enumerate(whole[:count])
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(0, len(widths) - 1)
