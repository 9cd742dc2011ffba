"""The editor of queries: highlights SQL and completes it from the store's own views (openforge/store/completion.py)."""

import re
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Label
from textual_textarea import TextEditor
from textual_textarea.autocomplete import CompletionList
from textual_textarea.containers import FooterContainer, TextContainer
from textual_textarea.text_editor import TextAreaPlus

from openforge.store.completion import complete
from openforge_tui.transcript import visible

_WIDE = 55  # cells of the list of candidates
_OF_THE_LIST = ("enter", "tab", "shift+tab", "escape", "up", "down", "pageup", "pagedown")
_WORD = re.compile(r"[\w.\"]*$")


class _Input(TextAreaPlus):
    """Where one types. Escape leaves it, once nothing is open and nothing is selected; copying is the app's."""

    def on_mount(self) -> None:
        self.language = "sql"  # given to the constructor, its highlighting is made twice, 40 ms each time

    def on_key(self, event: events.Key) -> None:
        # These keys are the list's while it is open, not while it is still being looked for.
        if event.key in _OF_THE_LIST and not self.query_ancestor(TextEditor).completion_list.is_open:
            self.completer_active = None

    def _handle_escape(self, event: events.Key) -> None:
        if self.completer_active is not None or self.selected_text:
            super()._handle_escape(event)
        else:
            event.prevent_default()  # TextArea would take it for "the next widget"; here it is the app's "back"

    def _copy_selection(self) -> None:
        self.clipboard = self.selected_text or self.document.get_line(self.cursor_location[0])
        self.app.copy(self.clipboard)  # type: ignore[attr-defined]

    def on_paste(self, event: events.Paste) -> None:
        event.text = visible(event.text.replace("\r\n", "\n").replace("\r", "\n"))


class _Candidates(CompletionList):
    INNER_CONTENT_WIDTH = _WIDE  # what is wider loses its beginning
    DEFAULT_CSS = f"_Candidates {{ width: {_WIDE + 3}; }}"


class SqlEditor(TextEditor, inherit_bindings=False):
    """`text` and `selected_text` are what was typed."""

    BINDINGS: ClassVar[list[BindingType]] = []
    DEFAULT_CSS = "SqlEditor { height: 1fr; }"

    def __init__(self, *, theme: str, id: str | None = None) -> None:
        super().__init__(
            language="sql",
            theme=theme,
            use_system_clipboard=False,
            path_completer=None,
            word_completer=self._complete,
            member_completer=self._complete,
            id=id,
        )

    def compose(self) -> ComposeResult:
        self.text_container = TextContainer()
        self.text_input = _Input(use_system_clipboard=False)
        self.text_input.soft_wrap = True
        self.completion_list = _Candidates()
        self.footer = FooterContainer(classes="hide")
        self.footer_label = Label("")
        with self.text_container:
            yield self.text_input
            yield self.completion_list
        with self.footer:
            yield self.footer_label

    def put(self, text: str) -> None:
        """This text instead, the cursor at its end; undo brings the old one back."""
        self.text = text
        if self.text_input is not None:
            self.text_input.move_cursor(self.text_input.document.end)

    def close_list(self) -> None:
        """Put the candidates away."""
        self.completion_list.is_open = False
        if self.text_input is not None:
            self.text_input.completer_active = None

    def insert(self, text: str) -> None:
        """At the cursor."""
        if self.text_input is not None:
            self.text_input.insert(text)

    @property
    def is_typed_in(self) -> bool:
        """Whether keys are text."""
        return self.text_input is not None and self.text_input.has_focus

    def _complete(self, prefix: str) -> list[tuple[tuple[str, str], str]]:
        """In a thread of its own. `prefix`: the word before the cursor, which may not be in the text yet."""
        if self.text_input is None:
            return []
        text = self.text_input.text
        line, column = self.text_input.cursor_location
        lines = text.split("\n")
        before = "\n".join([*lines[:line], lines[line][:column] if line < len(lines) else ""])
        if not before.endswith(prefix):
            before = _WORD.sub("", before) + prefix
        found = complete(before, text)
        wide = max((len(one.text) for one in found), default=0) + 1
        return [((f"{one.text:<{wide}}", _cut(one.about, _WIDE - wide - 2)), one.text) for one in found]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
