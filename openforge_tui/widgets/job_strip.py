"""One line while a job runs: which, for how long, and what it said last. Takes no room when none does."""

import time
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual import work
from textual.widgets import Static

from openforge_tui.jobs import Job, duration, last_line
from openforge_tui.transcript import visible

if TYPE_CHECKING:
    from openforge_tui.app import Desk


class JobStrip(Static):
    DEFAULT_CSS = """
    JobStrip { height: 1; padding: 0 1; display: none; }
    JobStrip.-busy { display: block; }
    """

    def on_mount(self) -> None:
        self.set_interval(0.5, self._look)

    def _look(self) -> None:
        running = list(cast("Desk", self.app).running.values())
        self.set_class(bool(running), "-busy")
        if running and getattr(self.screen, "in_front", True):
            self._show(running)

    @work(group="strip", exclusive=True)
    async def _show(self, running: list[Job]) -> None:
        desk, job = cast("Desk", self.app), running[-1]
        line = await desk.reader.work(last_line, job)
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        text = Text(f"▶ {visible(job.title)}{more}, {duration(time.time() - job.started_at)} ", "bold cyan")
        end = Text("   J shows it", "dim")
        text.append(visible(line))
        room = self.screen.size.width - 2  # its own width is not known yet when it has just come up
        text.truncate(max(room - end.cell_len, 1), overflow="ellipsis")
        self.update(text.append_text(end))
