"""`?`: what the keys do on the screen in front; drawn from the registry of actions, as the keys themselves are."""

from typing import Any

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from openforge_tui.actions import BY_ID, MODES, Action

_NAMES = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "minus": "-",
    "escape": "esc",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "plus": "+",
    "equals_sign": "=",
    "underscore": "_",
}


_WIDE = 100  # columns


class HelpScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,q,question_mark,f1", "dismiss", "close")]  # noqa: RUF012

    CSS = """
    HelpScreen .dialog { width: 96%; max-width: 110; height: 90%; padding: 0 1; }
    HelpScreen Static { height: auto; }
    """

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        bound: dict[str, list[str]] = {}
        for key, (_, binding, enabled, _) in about.active_bindings.items():
            if enabled and binding.id in BY_ID:
                bound.setdefault(binding.id, []).append(_NAMES.get(key, key))
        self._bound = bound

    def compose(self) -> ComposeResult:
        wide = self.app.size.width >= _WIDE
        with VerticalScroll(classes="dialog"):
            yield Static(self._table(ids=wide))
            if not wide:
                yield Static(Text(f"\nthe ids, for [app.keys], are shown from {_WIDE} columns on", "dim"))

    def _table(self, *, ids: bool) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, expand=True)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, min_width=20)
        if ids:
            table.add_column(no_wrap=True, style="dim", max_width=24)
        scope = ""
        for action in self._actions():
            if action.scope != scope:
                if scope:
                    table.add_row()
                scope = action.scope
            row = (" ".join(self._bound[action.id]), action.title, Text(action.help), action.id)
            table.add_row(*(row if ids else row[:3]))
        table.add_row()
        for mode in MODES:
            row = (mode.key, mode.noun, Text(mode.help), f"mode.{mode.noun}")
            table.add_row(*(row if ids else row[:3]))
        return table

    def _actions(self) -> list[Action]:
        """The screen's own first, then what holds everywhere."""
        common = ("view", "grid", "app")
        found = [BY_ID[name] for name in self._bound]
        return sorted(found, key=lambda action: common.index(action.scope) if action.scope in common else -1)
