"""The two lines on top: which view, which target, how old what is shown is; and the way here. Shows, asks nothing."""

import time

from rich.text import Text
from textual.reactive import reactive
from textual.widget import Widget

from openforge_tui.actions import MODES
from openforge_tui.transcript import visible

FRESH_S = 2.0  # what is older says so in another colour


class Header(Widget):
    DEFAULT_CSS = """
    Header { dock: top; height: 2; background: $panel; color: $foreground; }
    Header.-trouble { height: auto; max-height: 6; }
    Header.-remote { background: $error-darken-2; color: $text; }
    """
    mode: reactive[str] = reactive("")
    crumbs: reactive[str] = reactive("")
    note: reactive[str] = reactive("")
    trouble: reactive[str] = reactive("")
    loaded_at: reactive[float | None] = reactive(None)
    paused: reactive[bool] = reactive(False)

    def __init__(self, mode: str, target: str, *, remote: bool, readonly: bool) -> None:
        super().__init__(classes="-remote" if remote else None)
        self.set_reactive(Header.mode, mode)
        self._place = target + (" · read only" if readonly else "")

    def on_mount(self) -> None:
        self.set_interval(1.0, self._tick)

    def _tick(self) -> None:
        if getattr(self.screen, "in_front", True):  # of the view that it is in
            self.refresh()

    def render(self) -> Text:
        width = self.size.width
        age, style = self._age()
        tabs = Text()
        for mode in MODES:
            here = mode.noun == self.mode
            tabs.append(f" {mode.key} {mode.noun} ", "reverse bold" if here else "")
        right = Text(f"{self._place} ", "bold").append(age, style).append(" ")
        top = _across(tabs, right, width)
        way = _across(Text(f" {visible(self.crumbs)}", "bold"), Text(f"{visible(self.note)} ", "dim"), width)
        lines = [top, way]
        if self.trouble:
            lines.append(Text(f" ⚠ {visible(self.trouble)}", "bold yellow", overflow="fold"))
        return Text("\n").join(lines)

    def watch_trouble(self, trouble: str) -> None:
        self.set_class(bool(trouble), "-trouble")

    def _age(self) -> tuple[str, str]:
        if self.loaded_at is None:
            return ("reading …", "dim")
        age_s = time.monotonic() - self.loaded_at
        told = f"as of {_duration(age_s)} ago" if age_s >= 1 else "now"
        if self.paused:
            return (f"⏸ paused, {told}", "bold yellow")
        return (told, "bold yellow" if age_s > FRESH_S + 1 or self.trouble else "green")


def _across(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` on one line; what does not fit is cut from the left part."""
    room = max(width - right.cell_len, 0)
    left = left.copy()
    left.truncate(room, overflow="ellipsis", pad=True)
    return left.append_text(right)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
