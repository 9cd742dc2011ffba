"""Rows that come and go under a cursor that stays."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from openforge_tui.widgets.grid import Column, Grid, lay_out

COLUMNS = (Column("name"), Column("count", right=True), Column("state", style=lambda _: "red"))


def rows(*names: str) -> list[dict[str, object]]:
    return [{"name": name, "count": len(name), "state": "done"} for name in names]


@settings(deadline=None)  # the first call loads Arrow
@given(st.lists(st.text() | st.none() | st.integers() | st.floats(), max_size=8))
def test_no_value_puts_a_control_character_into_a_cell(values: list[object]) -> None:
    layout = lay_out([{"name": value} for value in values], COLUMNS, "name")
    texts = [text for text in layout.table.column(0).to_pylist() if text]
    assert not [c for text in texts for c in text if ord(c) < 32 or 0x7F <= ord(c) <= 0x9F or c in "\u202e\u2066"]


class Shown(App[None]):
    def compose(self) -> ComposeResult:
        yield Grid(COLUMNS, "name")


async def test_the_cursor_stays_on_its_row() -> None:
    async with Shown().run_test(size=(40, 8)) as pilot:
        grid = pilot.app.query_one(Grid)
        grid.show(grid.prepare(rows("a", "b", "c")))
        await pilot.press("down")
        grid.show(grid.prepare(rows("new", "a", "b", "c")))
        assert grid.current == rows("b")[0]
        grid.show(grid.prepare(rows("a", "c")))
        assert grid.current == rows("c")[0]  # its row went: the next one
        grid.show(grid.prepare([]))
        assert grid.current is None
        grid.show(grid.prepare(rows("z")))
        assert grid.current == rows("z")[0]


async def test_what_comes_above_does_not_move_what_one_reads() -> None:
    async with Shown().run_test(size=(40, 8)) as pilot:
        grid = pilot.app.query_one(Grid)
        names = [f"n{number:03d}" for number in range(100)]
        grid.show(grid.prepare(rows(*names)))
        await pilot.pause(0.1)
        await pilot.press("end")
        await pilot.pause(0.1)
        top = grid.scroll_offset.y
        assert top > 0
        grid.show(grid.prepare(rows("n---", *names)))
        await pilot.pause(0.1)
        assert (grid.scroll_offset.y, grid.current) == (top + 1, rows("n099")[0])


async def test_moves_are_told_once_and_a_refresh_is_no_move() -> None:
    told: list[object] = []

    class Listening(Shown):
        def on_grid_moved(self, event: Grid.Moved) -> None:
            told.append(event.row["name"])

    async with Listening().run_test(size=(40, 8)) as pilot:
        grid = pilot.app.query_one(Grid)
        grid.show(grid.prepare(rows("a", "b")))
        await pilot.pause()
        told.clear()
        grid.show(grid.prepare(rows("a", "b")))
        await pilot.pause()
        assert told == []
        await pilot.press("down")
        await asyncio.sleep(0)
        assert told == ["b"]


async def test_order_by_a_column_and_round() -> None:
    async with Shown().run_test(size=(40, 8)) as pilot:
        grid = pilot.app.query_one(Grid)
        some = rows("ccc", "a", "bb")
        await pilot.press("o")
        assert grid.order == ("name", False)
        assert [row["name"] for row in grid.prepare(some).rows] == ["a", "bb", "ccc"]
        await pilot.press("o", "O")
        assert grid.order == ("count", True)
        assert [row["name"] for row in grid.prepare(some).rows] == ["ccc", "bb", "a"]
