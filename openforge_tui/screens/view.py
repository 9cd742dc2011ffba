"""What every screen of the app has: the header, a filter, a loop that keeps it fresh, and the way back.

A screen gives `compose_body` and `load`. `load` reads (off the event loop) and shows; what it raises is told in the
header, and it is tried again: nothing that goes away while the app is open needs a restart.
"""

import asyncio
import time
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Input

from openforge.errors import OpenForgeError, UsageError
from openforge.filter import HINT, Test, parse_filter
from openforge_tui.actions import BY_ID
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Grid
from openforge_tui.widgets.header import Header
from openforge_tui.widgets.job_strip import JobStrip

if TYPE_CHECKING:
    from openforge_tui.app import Desk

_LOAD_LIMIT_S = 60.0


class View(Screen[None]):
    """Subclasses set SCOPE (of their actions), MODE, PERIOD_S and, where rows can be filtered, FILTERS = True."""

    SCOPE: ClassVar[str] = ""
    MODE: ClassVar[str] = ""
    PERIOD_S: ClassVar[float] = 1.0
    FILTERS: ClassVar[bool] = True
    AUTO_FOCUS = "#body *"
    BINDINGS = bindings("view")
    DEFAULT_CSS = """
    View #body { height: 1fr; }
    View #filter { height: 1; border: none; padding: 0 1; display: none; background: $boost; }
    View #filter.-open { display: block; }
    """
    filter_text: reactive[str] = reactive("", init=False)
    paused: reactive[bool] = reactive(False, init=False)

    def __init__(self) -> None:
        super().__init__()
        self.back_to = ""  # the mode this screen was opened from, when that is another
        self.loads = 0  # how often `load` has come to its end
        self._again = asyncio.Event()
        self._test: Test = parse_filter("")
        self._last_shown: tuple[Any, ...] = ()
        # Textual would read every stylesheet anew, twice, for a screen that has just been made from them.
        self._css_update_count = self.desk._css_update_count

    @property
    def desk(self) -> "Desk":
        """The app this screen is of."""
        return cast("Desk", self.app)

    @property
    def in_front(self) -> bool:
        """Whether it can be seen: a box over it hides little, another view all of it (which `is_current` overlooks)."""
        stack = self.app.screen_stack
        return self in stack and not any(isinstance(one, View) for one in stack[stack.index(self) + 1 :])

    @property
    def header(self) -> Header:
        return self.query_one(Header)

    def compose(self) -> ComposeResult:
        desk = self.desk
        yield Header(self.MODE, desk.target_name, remote=desk.is_remote, readonly=desk.readonly)
        with Vertical(id="body"):
            yield from self.compose_body()
        yield JobStrip()
        yield Input(placeholder=f"filter: {HINT}", id="filter", classes="", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def compose_body(self) -> Iterable[Widget]:
        """The widgets between header and footer."""
        raise NotImplementedError

    async def load(self) -> None:
        """Read what there is and show it. Raises OpenForgeError."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self._follow()

    def on_screen_resume(self) -> None:
        self.look_again()

    async def on_resize(self) -> None:
        await asyncio.sleep(0)  # between two restylings of a screen that has just come up

    def look_again(self) -> None:
        """Load now, not at the next turn of the loop."""
        self._again.set()

    @work(group="follow")
    async def _follow(self) -> None:
        while True:
            self._again.clear()  # before, so that what is asked for while it loads comes next
            if self.in_front:
                await self._load_once()
            try:
                async with asyncio.timeout(self.PERIOD_S):
                    await self._again.wait()
            except TimeoutError:
                if self.paused or not self.in_front:
                    await self._again.wait()

    async def _load_once(self) -> None:
        try:
            async with asyncio.timeout(_LOAD_LIMIT_S):
                await self.load()
        except OpenForgeError as error:
            self._last_shown = ()
            self.header.trouble = error.summary + (f" · next: {error.hint}" if error.hint else "")
        except TimeoutError:
            self.header.trouble = f"no answer within {_LOAD_LIMIT_S:.0f} s; trying again"
        except Exception as error:  # a fault of ours must be seen, and must not take the app with it
            if not self.query(Header):
                return  # the screen was closed meanwhile
            self.header.trouble = (
                f"{type(error).__name__}: {error} · written to {self.desk.note_fault(traceback.format_exc())}"
            )
        else:
            self.header.trouble = ""
            self.header.loaded_at = time.monotonic()
        self.loads += 1

    def unchanged(self, *what: Any) -> bool:
        """Whether `what` is what it was when this was asked last; lists and dicts are the same when they are one
        object. A `load` that would show the same again may stop here."""
        before, self._last_shown = self._last_shown, (*what, self.filter_text)
        return len(before) == len(self._last_shown) and all(map(_same, before, self._last_shown))

    # Filter

    def matches(self, row: dict[str, Any]) -> bool:
        """Whether the filter lets a row through. Raises UsageError for a column that it does not have."""
        return self._test(row)

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.add_class("-open")
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id != "filter":
            return
        try:
            self._test = parse_filter(event.value)
        except UsageError as error:
            self.header.trouble = error.summary
            return
        self.filter_text = event.value
        self.look_again()

    def set_filter(self, text: str) -> None:
        """Filter as if `text` had been typed."""
        line = self.query_one("#filter", Input)
        line.value = text
        line.set_class(bool(text), "-open")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self._leave_filter()

    def _leave_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.set_class(bool(line.value), "-open")
        for grid in self.query(Grid).results(Grid):
            grid.focus()
            break
        else:
            self.focus_next()

    def action_back(self) -> None:
        """Close the filter, then leave; a mode's first screen stays."""
        line = self.query_one("#filter", Input)
        if line.has_focus or line.value:
            line.value = ""
            self._leave_filter()
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()
            if self.back_to:
                self.desk.action_mode(self.back_to)

    # Following

    def action_refresh(self) -> None:
        self.look_again()

    def action_pause(self) -> None:
        self.paused = not self.paused

    def watch_paused(self, paused: bool) -> None:
        self.header.paused = paused
        if not paused:
            self.look_again()

    # Copying

    def copyable(self) -> str:
        """What `copy` takes: the key of the row under the cursor, unless a screen knows better."""
        for grid in self.query(Grid).results(Grid):
            if (row := grid.current) is not None:
                return str(row.get(grid.key))
        return ""

    def action_copy(self) -> None:
        if text := self.copyable():
            self.desk.copy(text)

    def on_grid_reordered(self, event: Grid.Reordered) -> None:
        self.look_again()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Actions that change something are away in a read-only app."""
        known = BY_ID.get(f"{self.SCOPE}.{action}")
        if known is not None and known.changes and self.desk.readonly:
            return False
        return action != "filter" or self.FILTERS

    def say(self, text: str, *, error: bool = False) -> None:
        """A short message that goes away."""
        self.notify(visible(text), severity="error" if error else "information", markup=False)


def _same(one: Any, other: Any) -> bool:
    return one is other if isinstance(one, list | dict) else bool(one == other)
