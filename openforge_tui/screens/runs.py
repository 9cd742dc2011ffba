"""Mode 2: every run, the newest first."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from openforge_tui.screens.states import state_style
from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid

COLUMNS = (
    Column("run_id", "run"),
    Column("state", style=state_style),
    Column("rollouts", right=True),
    Column("done", right=True),
    Column("failed", right=True),
    Column("error", right=True, style=lambda count: "red" if count else "dim"),
    Column("reward", text=lambda value: f"{value:.2f}", right=True),
    Column("created_at", "begun (UTC)", text=lambda at: at.strftime("%d %b %H:%M")),
    Column("harnesses"),
    Column("policy"),
)


class RunsScreen(View):
    SCOPE = "runs"
    MODE = "runs"
    BINDINGS: ClassVar = bindings("runs")

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(COLUMNS, "run_id")

    async def load(self) -> None:
        rows = await self.desk.reader.runs()
        grid = self.query_one(Grid)
        chosen = [row for row in rows if self.matches(row)]
        grid.show(await self.desk.reader.work(grid.prepare, chosen))
        self.header.crumbs = "runs"
        hidden = f"{len(chosen)} of {len(rows)} runs" if self.filter_text else f"{len(rows)} runs"
        self.header.note = hidden if rows else "no runs yet: r starts one"

    async def action_open(self) -> None:
        if (row := self.query_one(Grid).current) is not None:
            await self.desk.open_run(row["run_id"])

    async def on_grid_opened(self, event: Grid.Opened) -> None:
        await self.action_open()
