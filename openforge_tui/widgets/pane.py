"""A long text to read: laid out in a thread, drawn line by line. A megabyte in one line blocks no key.

Given a Rich renderable whose texts are already safe (transcript.visible); does not know what it is about.
"""

import asyncio
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from textual import work
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from openforge_tui.widgets.binding import bindings

type Draw = Callable[[], RenderableType]


class Pane(ScrollView, can_focus=True):
    """Shows one renderable at a time; keeps its place when the same `key` is shown again."""

    BINDINGS = bindings("pane")
    DEFAULT_CSS = """
    Pane { height: 1fr; padding: 0 1; background: $background; scrollbar-gutter: stable; }
    Pane:focus { background: $surface; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._key: object = None
        self._draw: Draw | None = None
        self._lines: list[Strip] = []
        self._width = 0
        self.follow = False
        """Stay at the end when more is shown; going up ends it, `end` begins it again."""

    def show(self, draw: Draw, key: object = None) -> None:
        """Show what `draw` returns; it is called in a thread."""
        same = key is not None and key == self._key
        self._key, self._draw = key, draw
        self._lay_out(keep_place=same)

    @property
    def text(self) -> str:
        """What is shown, without colours, as it is laid out."""
        return "\n".join(line.text.rstrip() for line in self._lines)

    def on_resize(self) -> None:
        if self._draw is not None and self._content_width() != self._width:
            self._lay_out(keep_place=True)

    def _content_width(self) -> int:
        return max(self.scrollable_content_region.width, 10)

    @work(group="layout", exclusive=True)
    async def _lay_out(self, *, keep_place: bool) -> None:
        draw, width = self._draw, self._content_width()
        if draw is None:
            return
        lines = await asyncio.to_thread(_lines, draw, width)
        self._lines, self._width = lines, width
        self.virtual_size = Size(width, len(lines))
        if self.follow:
            self.scroll_end(animate=False, force=True)
        elif not keep_place:
            self.scroll_home(animate=False, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        _, top = self.scroll_offset
        at = top + y
        base = self.rich_style
        if not 0 <= at < len(self._lines):
            return Strip.blank(self.size.width, base)
        return self._lines[at].apply_style(base).adjust_cell_length(self.size.width, base)

    def find(self, found: Callable[[str], bool]) -> bool:
        """Scroll to the next line below the top one of which `found` is true; False when there is none."""
        top = round(self.scroll_y)
        for number in range(top + 1, len(self._lines)):
            if found(self._lines[number].text):
                self.scroll_to(y=number, animate=False)
                return True
        return False

    def action_line_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_line_up(self) -> None:
        self.follow = False
        self.scroll_relative(y=-1, animate=False)

    def action_forward(self) -> None:
        self.scroll_page_down(animate=False)

    def action_backward(self) -> None:
        self.follow = False
        self.scroll_page_up(animate=False)

    def action_top(self) -> None:
        self.follow = False
        self.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.scroll_end(animate=False)


def _lines(draw: Draw, width: int) -> list[Strip]:
    console = Console(
        width=width,
        height=100,
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        markup=False,
        highlight=False,
    )
    options = console.options.update(width=width, height=None)
    rendered = console.render_lines(draw(), options, pad=False)
    return [Strip([_plain(segment) for segment in line]) for line in rendered]


def _plain(segment: Segment) -> Segment:
    return segment if segment.style is not None else Segment(segment.text, Style.null())
