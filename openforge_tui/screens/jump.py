"""Jump mode (ctrl+o): a letter on every widget that can take the focus; pressing it goes there. No mouse is needed."""

from string import ascii_lowercase
from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen, Screen
from textual.widgets import Label


class JumpScreen(ModalScreen[None]):
    BINDINGS = [Binding("escape,ctrl+o", "dismiss", "leave")]  # noqa: RUF012
    DEFAULT_CSS = """
    JumpScreen { background: $background 30%; layers: letters; align: left top; }
    JumpScreen Label { layer: letters; position: absolute; background: $accent; color: $background; text-style: bold;
        width: 3; content-align: center middle; }
    """

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        targets = [widget for widget in about.focus_chain if widget.region.area]
        self._targets = dict(zip(ascii_lowercase, targets, strict=False))

    def compose(self) -> ComposeResult:
        for letter, widget in self._targets.items():
            label = Label(letter)
            label.styles.offset = (widget.region.x, widget.region.y)
            yield label

    def on_key(self, event: events.Key) -> None:
        if (widget := self._targets.get(event.key)) is not None:
            event.stop()
            self.dismiss()
            widget.focus()
