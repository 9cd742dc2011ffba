"""Boxes over a screen: one that asks before something is lost, one that shows text, one that lets choose, one that
asks for a file."""

from collections.abc import Callable, Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from openforge.errors import UsageError
from openforge_tui.transcript import visible


class Confirm(ModalScreen[bool]):
    """Yes or no. With `word`, yes is typing that word: for what is done to a cluster elsewhere."""

    BINDINGS = [  # noqa: RUF012
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape", "answer(False)", "no"),
    ]

    def __init__(self, question: str, *, detail: str = "", word: str = "") -> None:
        super().__init__()
        self._question, self._detail, self._word = question, detail, word

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(visible(self._question), markup=False)
            if self._detail:
                yield Static(visible(self._detail), markup=False)
            if self._word:
                yield Label(f"\nType {visible(self._word)} to go on, escape to leave it.", markup=False)
                yield Input(id="word")
            else:
                yield Label("\n[b]y[/b] yes    [b]n[/b] no")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value == self._word:
            self.dismiss(True)
        else:
            self.notify(f"that is not {visible(self._word)}", severity="warning", markup=False)

    def action_answer(self, yes: bool) -> None:
        if not (yes and self._word):
            self.dismiss(yes)


class Choose(ModalScreen[str | None]):
    """One of several; each is (id, title, what it is)."""

    BINDINGS = [Binding("escape", "dismiss(None)", "leave")]  # noqa: RUF012
    DEFAULT_CSS = "Choose OptionList { height: auto; max-height: 20; }"

    def __init__(self, title: str, options: Sequence[tuple[str, str, str]]) -> None:
        super().__init__()
        self._title, self._options = title, options

    def compose(self) -> ComposeResult:
        from rich.text import Text

        with Vertical(classes="dialog"):
            yield Label(visible(self._title), markup=False)
            yield OptionList(
                *(
                    Option(Text(visible(title), "bold").append(f"  {visible(about)}", "not bold dim"), id=key)
                    for key, title, about in self._options
                )
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


class Reading(ModalScreen[None]):
    """A text to read, and to copy with `c`."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,q,enter", "dismiss", "close"),
        Binding("c", "copy", "copy"),
    ]
    DEFAULT_CSS = "Reading VerticalScroll { height: auto; max-height: 30; }"

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(visible(self._title), markup=False)
            with VerticalScroll():
                yield Static(visible(self._text), markup=False, id="text")
            yield Label("\n[dim]esc closes · c copies[/dim]")

    def show(self, text: str) -> None:
        """Another text."""
        self._text = text
        self.query_one("#text", Static).update(visible(text))

    def action_copy(self) -> None:
        self.app.copy(self._text)  # type: ignore[attr-defined]


class WriteTo(ModalScreen[Path | None]):
    """A file to write. A relative path is one of `folder`; one that is there is asked about; `check` raises UsageError
    for one that cannot be meant."""

    BINDINGS = [Binding("escape", "dismiss(None)", "leave")]  # noqa: RUF012

    def __init__(
        self,
        title: str,
        folder: Path,
        value: str = "",
        *,
        placeholder: str = "",
        check: Callable[[Path], None] = lambda dest: None,
    ) -> None:
        super().__init__()
        self._title, self._folder, self._check = title, folder, check
        self._value, self._placeholder = value, placeholder
        self._over: Path | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(visible(self._title), markup=False)
            yield Input(self._value, placeholder=self._placeholder, compact=True, select_on_focus=False)
            yield Static(f"in {visible(str(self._folder))}", markup=False, id="told")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._over = None

    def on_input_submitted(self, event: Input.Submitted) -> None:
        told = self.query_one("#told", Static)
        if not event.value.strip():
            return
        dest = self._folder / Path(event.value.strip()).expanduser()
        try:
            self._check(dest)
            if dest.is_dir():
                raise UsageError(f"{dest} is a folder", hint="name a file")
        except UsageError as error:
            told.update(visible(f"{error.summary}; {error.hint}"))
            return
        if dest.exists() and self._over != dest:
            self._over = dest
            told.update(visible(f"{dest} is there already: enter once more writes over it, escape leaves it"))
            return
        self.dismiss(dest)
