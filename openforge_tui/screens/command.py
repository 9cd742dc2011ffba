"""The `:` line: a view, an action of the screen in front, or `open ID`. The same registry as the keys."""

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen, Screen
from textual.suggester import SuggestFromList
from textual.widgets import Input

from openforge_tui.actions import MODES
from openforge_tui.widgets.palette import Choice, choices, perform

if TYPE_CHECKING:
    from openforge_tui.app import Desk

_ALIASES = {"q": "quit", "q!": "quit", "rollouts": "runs", "o": "open", "h": "help"}


class CommandLine(ModalScreen[str | None]):
    BINDINGS = [Binding("escape", "dismiss(None)", "leave")]  # noqa: RUF012
    DEFAULT_CSS = """
    CommandLine { align: left bottom; background: transparent; }
    CommandLine Input { dock: bottom; height: 1; border: none; background: $boost; padding: 0 1; }
    """

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        self._words = sorted({word for word, _ in words(about)} | {"open ", "filter "})

    def compose(self) -> ComposeResult:
        yield Input(placeholder=f": {' '.join(self._words)}", suggester=SuggestFromList(self._words), compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip().removeprefix(":"))


def words(screen: Screen[Any]) -> Iterator[tuple[str, Choice]]:
    """What may be typed over `screen`, and what it does."""
    for choice in choices(screen):
        yield choice.title.partition(": ")[2].replace(" ", "-"), choice


async def obey(desk: "Desk", line: str) -> None:
    """Do what was typed."""
    word, _, rest = line.partition(" ")
    word = _ALIASES.get(word, word)
    known = dict(words(desk.screen))
    if word == "open" and rest.strip():
        await desk.open_id(rest.strip())
        return
    if word in {mode.noun for mode in MODES}:
        desk.action_mode(word)
        if rest.strip():
            await desk.screen.arrive(rest.strip())  # type: ignore[attr-defined]
        return
    if word == "filter" and hasattr(desk.screen, "set_filter"):
        desk.screen.set_filter(rest)
        return
    if (choice := known.get(word)) is not None:
        await perform(desk, desk.screen, choice)
        return
    near = difflib.get_close_matches(word, [*known, "open", "filter"], n=1)
    hint = f"did you mean :{near[0]}?" if near else "? lists what can be done here"
    desk.notify(f"there is no command {word!r}; {hint}", severity="warning", markup=False)
