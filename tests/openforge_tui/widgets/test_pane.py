"""A long text is laid out in a thread and drawn line by line, whatever is in it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text
from textual.app import App, ComposeResult

from openforge_tui.transcript import visible
from openforge_tui.widgets.pane import Pane, _lines

WIDTH = 40


@settings(deadline=None)
@given(st.text())
def test_no_text_breaks_a_line_or_reaches_the_terminal(text: str) -> None:
    for line in _lines(lambda: Text(visible(text)), WIDTH):
        assert line.cell_length <= WIDTH
        assert not [char for char in line.text if ord(char) < 32 or 0x7F <= ord(char) <= 0x9F or char in "\u202e\u2066"]


class Shown(App[None]):
    def compose(self) -> ComposeResult:
        yield Pane()


async def shown(pilot, pane: Pane, text: str, key: object = None) -> None:
    before = pane._lines
    pane.show(lambda: Text(text), key)
    for _ in range(200):
        if pane._lines is not before:
            break
        await pilot.pause(0.02)
    await pilot.pause(0.1)


async def test_it_keeps_its_place_when_the_same_thing_is_shown_again() -> None:
    async with Shown().run_test(size=(40, 10)) as pilot:
        pane = pilot.app.query_one(Pane)
        await shown(pilot, pane, "\n".join(map(str, range(100))), "a")
        await pilot.press("pagedown")
        place = pane.scroll_y
        assert place > 0
        await shown(pilot, pane, "\n".join(map(str, range(200))), "a")
        assert pane.scroll_y == place
        await shown(pilot, pane, "\n".join(map(str, range(200))), "b")
        assert pane.scroll_y == 0


async def test_it_follows_the_end_until_one_goes_up() -> None:
    async with Shown().run_test(size=(40, 10)) as pilot:
        pane = pilot.app.query_one(Pane)
        pane.follow = True
        await shown(pilot, pane, "\n".join(map(str, range(100))), "log")
        assert pane.scroll_y == pane.max_scroll_y > 0
        await pilot.press("up")
        place = pane.scroll_y
        await shown(pilot, pane, "\n".join(map(str, range(120))), "log")
        assert pane.scroll_y == place


async def test_it_is_laid_out_anew_when_the_width_changes() -> None:
    async with Shown().run_test(size=(40, 10)) as pilot:
        pane = pilot.app.query_one(Pane)
        await shown(pilot, pane, "word " * 100)
        lines = len(pane._lines)
        await pilot.resize_terminal(80, 10)
        await pilot.pause(0.2)
        assert len(pane._lines) < lines


async def test_the_next_line_with_a_word_is_found() -> None:
    async with Shown().run_test(size=(40, 10)) as pilot:
        pane = pilot.app.query_one(Pane)
        await shown(pilot, pane, "\n".join([*["x"] * 50, "needle", *["x"] * 50]))
        assert pane.find(lambda line: "needle" in line)
        assert pane.scroll_y == 50
        assert not pane.find(lambda line: "needle" in line)
