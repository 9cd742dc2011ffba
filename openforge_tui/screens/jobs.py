"""`J`: long work that was started here, what it says, how it ended. Shows and asks to stop; jobs.py does."""

import asyncio
import time
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual.widget import Widget
from textual.widgets import Log, Static

from openforge.errors import OpenForgeError
from openforge_tui.jobs import Job, duration, outcome
from openforge_tui.screens.dialog import Confirm
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid, Row

STYLES = {"running": "bold cyan", "done": "green", "failed": "red", "stopped": "yellow", "lost": "red"}
_TAIL_BYTES = 1 << 18
_LINES = 5000
COLUMNS = (
    Column("id"),
    Column("state", style=lambda state: STYLES.get(state, "")),
    Column("exit", right=True),
    Column("title"),
    Column("began"),
    Column("took", right=True),
    Column("command"),
)


def row_of(job: Job) -> Row:
    """A job as a row."""
    end = time.time() if job.running else job.ended_at
    return {
        "id": job.id,
        "state": job.state,
        "exit": job.exit_code,
        "title": job.title,
        "began": time.strftime("%d %b %H:%M:%S", time.localtime(job.started_at)),
        "took": None if end is None else duration(end - job.started_at),
        "command": job.command,
    }


def ending(job: Job) -> Text:
    """How a job stands, in one to three lines."""
    if job.running:
        return Text("running; ", "bold cyan").append("quitting the app does not end it, ctrl+d does", "dim")
    told = outcome(job)
    text = Text(job.state, STYLES[job.state])
    if job.exit_code is not None:
        text.append(f", exit code {job.exit_code}", "bold")
    text.append(f": {visible(told.result) or told.meaning}")
    if told.error:
        text.append(f"\nerror: {visible(told.error)}", "red")
    if told.next:
        text.append(f"\nnext: {visible(told.next)}", "bold")
    return text


class _Piece(NamedTuple):
    """Some more of a job's output, and how far it goes."""

    text: str
    at: int
    skipped: int


class JobsScreen(View):
    """Jobs above; of the chosen one how it ended, and its output as it comes."""

    SCOPE = "jobs"
    DEFAULT_CLASSES = "-panes"
    BINDINGS: ClassVar = bindings("jobs")
    DEFAULT_CSS = """
    JobsScreen JobStrip { max-height: 0; }
    JobsScreen Grid { height: 40%; }
    JobsScreen #ending { height: auto; max-height: 4; padding: 0 1; background: $boost; }
    JobsScreen Log { height: 1fr; padding: 0 1; }
    """

    def __init__(self, job_id: str = "") -> None:
        super().__init__()
        self._wanted = job_id
        self._jobs: dict[str, Job] = {}
        self._shown: tuple[str, int] = ("", 0)
        self._showing = asyncio.Lock()  # a move of the cursor and the loop may both want to show more

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(COLUMNS, "id")
        yield Static(id="ending", markup=False)
        yield Log(max_lines=_LINES)

    async def load(self) -> None:
        jobs = await self.desk.reader.work(self.desk.jobs.all)
        self._jobs = {job.id: job for job in jobs}
        rows = [row for row in map(row_of, jobs) if self.matches(row)]
        grid = self.query_one(Grid)
        grid.show(await self.desk.reader.work(grid.prepare, rows))
        if self._wanted:
            grid.go_to(self._wanted)
            self._wanted = ""
        going_on = sum(job.running for job in jobs)
        self.header.crumbs = "jobs"
        shown = f"{len(rows)} of {len(jobs)}" if self.filter_text else f"{len(jobs)}"
        self.header.note = f"{going_on} running, {shown} in all; quitting ends none" if jobs else "no job yet"
        await self._show_output()

    async def on_grid_moved(self, event: Grid.Moved) -> None:
        try:
            await self._show_output()
        except OpenForgeError:  # another app forgot this job: the next load tells
            self.look_again()

    @property
    def job(self) -> Job | None:
        """The one under the cursor."""
        row = self.query_one(Grid).current
        return self._jobs.get(row["id"]) if row else None

    async def _show_output(self) -> None:
        async with self._showing:
            job, log = self.job, self.query_one(Log)
            if job is None:
                log.clear()
                self._shown = ("", 0)
                self.query_one("#ending", Static).update(
                    Text("long work that is started in the app stands here, with what it says", "dim")
                )
                return
            name, at = self._shown
            piece = await self.desk.reader.work(_read, job, at if name == job.id else 0)
            if name != job.id:
                log.clear()
            if piece.skipped:
                log.write_line(f"… {piece.skipped} bytes before this are in {job.log}")
            log.write_lines(piece.text.splitlines())
            self._shown = (job.id, piece.at)
            self.query_one("#ending", Static).update(await self.desk.reader.work(ending, job))

    def copyable(self) -> str:
        return self.job.command if self.job else ""

    def action_stop(self) -> None:
        job = self.job
        if job is None or not job.running:
            self.say("this job has ended already" if job else "there is no job to stop")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.desk.jobs.stop(job)
                self.look_again()

        self.app.push_screen(Confirm(f"Stop `{job.command}`?", detail="As Ctrl-C: it ends in good order."), answered)


def _read(job: Job, at: int) -> _Piece:
    """What came after byte `at`: whole lines only while more may come, and only the end where there is much."""
    with job.log.open("rb") as file:
        size = file.seek(0, 2)
        start = max(at, size - _TAIL_BYTES)
        file.seek(start)
        data = file.read(size - start)
    if job.running:
        data = data[: data.rfind(b"\n") + 1]
    return _Piece(visible(data.decode(errors="replace").replace("\r\n", "\n")), start + len(data), start - at)
