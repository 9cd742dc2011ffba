"""`J`: long work that was started here, and what it says; `ctrl+l`: the commands alone, to learn from and to copy."""

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Log, Static

from openforge_tui.jobs import Job
from openforge_tui.screens.dialog import Confirm
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid

_STATES = {"running": "bold cyan", "done": "green", "failed": "red", "stopped": "yellow", "lost": "red"}
_TAIL_BYTES = 1 << 18
COLUMNS = (
    Column("id"),
    Column("state", style=lambda state: _STATES.get(state, "")),
    Column("title"),
    Column("for", right=True),
    Column("command"),
)


def row_of(job: Job) -> dict[str, object]:
    """A job as a row."""
    seconds = time.time() - job.started_at
    since = f"{seconds:.0f} s" if job.running else time.strftime("%d %b %H:%M", time.localtime(job.started_at))
    return {"id": job.id, "state": job.state, "title": job.title, "for": since, "command": job.command, "job": job}


class JobsScreen(View):
    """Jobs above, the chosen one's output below."""

    SCOPE = "jobs"
    BINDINGS: ClassVar = bindings("jobs")
    DEFAULT_CSS = """
    JobsScreen Grid { height: 40%; }
    JobsScreen Log { height: 1fr; border-top: solid $panel; }
    """

    def __init__(self, job_id: str = "") -> None:
        super().__init__()
        self._wanted = job_id
        self._shown: tuple[str, int] = ("", 0)

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(COLUMNS, "id")
        yield Log(max_lines=5000)

    async def load(self) -> None:
        jobs = await self.desk.reader.work(self.desk.jobs.all)
        grid = self.query_one(Grid)
        rows = [row for row in map(row_of, jobs) if self.matches({k: v for k, v in row.items() if k != "job"})]
        grid.show(grid.prepare(rows))
        if self._wanted:
            grid.go_to(self._wanted)
            self._wanted = ""
        going_on = sum(job.running for job in jobs)
        self.header.crumbs = "jobs"
        self.header.note = f"{going_on} running, {len(jobs)} in all; quitting ends none"
        await self._show_output()

    async def on_grid_moved(self, event: Grid.Moved) -> None:
        await self._show_output()

    async def _show_output(self) -> None:
        row = self.query_one(Grid).current
        if row is None:
            return
        job: Job = row["job"]
        name, at = self._shown
        log = self.query_one(Log)
        if name != job.id:
            log.clear()
            at = 0
        try:
            size = job.log.stat().st_size
        except OSError:
            size = 0
        at = max(at, size - _TAIL_BYTES)
        data = await self.desk.reader.work(_read, job, at, size - at) if size > at else b""
        if data:
            log.write_lines(visible(data.decode(errors="replace")).splitlines())
        self._shown = (job.id, at + len(data))

    def copyable(self) -> str:
        row = self.query_one(Grid).current
        return str(row["command"]) if row else ""

    def action_stop(self) -> None:
        row = self.query_one(Grid).current
        if row is not None and row["job"].running:
            job: Job = row["job"]
            self.app.push_screen(
                Confirm(f"Stop `{job.command}`?", detail="As Ctrl-C would: it ends in good order."),
                lambda yes: self.desk.jobs.stop(job) if yes else None,
            )


def _read(job: Job, at: int, size: int) -> bytes:
    """Whole lines only."""
    with job.log.open("rb") as file:
        file.seek(at)
        data = file.read(size)
    return data[: data.rfind(b"\n") + 1] if job.running else data


class CommandLogScreen(ModalScreen[None]):
    """The commands, oldest first, with the programs that the running ones started."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+l,q", "dismiss", "close"), Binding("c", "copy", "copy the last")]
    DEFAULT_CSS = """
    CommandLogScreen { align: center bottom; }
    CommandLogScreen .dialog { width: 100%; max-width: 100%; max-height: 60%; }
    """

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(id="commands", markup=False)

    def on_mount(self) -> None:
        self._draw()
        self.set_interval(1, self._draw)

    def _draw(self) -> None:
        text = Text()
        for job in reversed(self.app.jobs.all()[:12]):  # type: ignore[attr-defined]
            clock = time.strftime("%H:%M:%S ", time.localtime(job.started_at))
            text.append(clock, "dim").append(f"$ {visible(job.command)}", "bold").append(
                f"   {job.state}\n", _STATES[job.state]
            )
            for line in programs(job)[-6:]:
                text.append(f"           {visible(line)}\n", "dim")
        self.query_one("#commands", Static).update(
            text or Text("no command yet: what is started here stands here", "dim")
        )

    def action_copy(self) -> None:
        if jobs := self.app.jobs.all():  # type: ignore[attr-defined]
            self.app.copy(jobs[0].command)  # type: ignore[attr-defined]


def programs(job: Job) -> list[str]:
    """The programs that a job ran, as they would be typed."""
    try:
        return (job.folder / "programs.log").read_text(errors="replace").splitlines()
    except OSError:
        return []
