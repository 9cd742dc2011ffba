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


class HelpScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,q,question_mark,f1", "dismiss", "close")]  # noqa: RUF012

    DEFAULT_CSS = "HelpScreen .dialog { width: 96%; max-width: 110; height: 90%; } HelpScreen Static { height: auto; }"

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        bound: dict[str, list[str]] = {}
        for key, (_, binding, enabled, _) in about.active_bindings.items():
            if enabled and binding.id in BY_ID:
                bound.setdefault(binding.id, []).append(_NAMES.get(key, key))
        self._bound = bound

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Static(self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, expand=True)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, min_width=20)
        table.add_column(no_wrap=True, style="dim", max_width=22)
        for key, mode in ((mode.key, mode) for mode in MODES):
            table.add_row(key, mode.noun, Text(mode.help), f"mode.{mode.noun}")
        scope = ""
        for action in self._actions():
            if action.scope != scope:
                scope = action.scope
                table.add_row("", "", "", "")
            table.add_row(" ".join(self._bound[action.id]), action.title, Text(action.help), action.id)
        return table

    def _actions(self) -> list[Action]:
        """The screen's own first, then what holds everywhere."""
        common = ("view", "grid", "app")
        found = [BY_ID[name] for name in self._bound]
        return sorted(found, key=lambda action: common.index(action.scope) if action.scope in common else -1)
