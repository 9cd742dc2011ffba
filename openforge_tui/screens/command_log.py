"""`ctrl+l`: the commands that were started here and the programs that they ran, to learn from and to copy."""

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from openforge.errors import OpenForgeError
from openforge_tui.jobs import Job, programs
from openforge_tui.screens.jobs import STYLES
from openforge_tui.transcript import visible

if TYPE_CHECKING:
    from openforge_tui.app import Desk

_MOST = 500
_KEYS = "c copies the line · esc closes"


class Line(NamedTuple):
    """One command (`state` of its job) or program (no state), as it would be typed."""

    clock: str
    text: str
    state: str = ""


def lines_of(jobs: list[Job]) -> list[Line]:
    """The log, oldest first."""
    lines: list[Line] = []
    for job in sorted(jobs, key=lambda job: job.id):
        lines.append(Line(time.strftime("%H:%M:%S", time.localtime(job.started_at)), job.command, job.state))
        for program in programs(job):
            clock, _, text = program.partition(" ")
            lines.append(Line(clock, text))
    return lines


class CommandLogScreen(ModalScreen[None]):
    """Oldest first, the cursor on the newest until it is moved."""

    BINDINGS: ClassVar = [
        Binding("escape,ctrl+l,q", "dismiss", "close"),
        Binding("c,enter", "copy", "copy", priority=True),
        Binding("j", "step(1)", "down"),
        Binding("k", "step(-1)", "up"),
    ]
    CSS = """
    CommandLogScreen { align: center bottom; }
    CommandLogScreen .dialog { width: 100%; max-width: 100%; height: 60%; }
    CommandLogScreen OptionList { height: 1fr; border: none; padding: 0; background: $surface; }
    CommandLogScreen .keys { color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield OptionList()
            yield Label(_KEYS, classes="keys")

    async def on_mount(self) -> None:
        await self._draw()
        self.set_interval(1, self._draw)

    async def _draw(self) -> None:
        desk = cast("Desk", self.app)
        try:
            lines = await desk.reader.work(lambda: lines_of(desk.jobs.all()))
        except OpenForgeError as error:
            self.query_one(Label).update(Text(visible(f"⚠ {error.summary} · esc closes"), "bold yellow"))
            return
        self.query_one(Label).update(_KEYS)
        if lines == self._lines and lines:
            return
        listed = self.query_one(OptionList)
        at = listed.highlighted
        follow = at is None or at >= listed.option_count - 1
        self._lines = lines
        hidden = max(len(lines) - _MOST, 0)
        head = [Option(f"… {hidden} earlier lines are in {desk.desk_dir / 'jobs'}", disabled=True)] if hidden else []
        if not lines:
            head = [Option(Text("no command yet: what is started in the app stands here", "dim"), disabled=True)]
        listed.clear_options()
        listed.add_options([*head, *(Option(_drawn(line), id=str(number)) for number, line in self._shown(hidden))])
        listed.highlighted = listed.option_count - 1 if follow else at

    def _shown(self, hidden: int) -> list[tuple[int, Line]]:
        return list(enumerate(self._lines))[hidden:]

    def action_step(self, by: int) -> None:
        listed = self.query_one(OptionList)
        listed.action_cursor_down() if by > 0 else listed.action_cursor_up()

    def action_copy(self) -> None:
        chosen = self.query_one(OptionList).highlighted_option
        if chosen is not None and chosen.id is not None:
            cast("Desk", self.app).copy(self._lines[int(chosen.id)].text)


def _drawn(line: Line) -> Text:
    text = Text(f"{line.clock} ", "dim")
    if not line.state:
        return text.append(f"{'':<10}{visible(line.text)}", "dim")
    return text.append(f"{line.state:<8}", STYLES[line.state]).append(f"$ {visible(line.text)}", "bold")
