"""Mode 2: every run, the newest first."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.widget import Widget

from openforge_tui.screens.dialog import Choose, Confirm
from openforge_tui.screens.states import GOING_ON, state_style
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
    Column("cancelled", right=True, style=lambda count: "yellow" if count else "dim"),
    Column("reward", text=lambda value: f"{value:.2f}", right=True),
    Column("created_at", "begun (UTC)", text=lambda at: at.strftime("%d %b %H:%M")),
    Column("harnesses"),
    Column("policy"),
)


EXPORTS = (
    ("html", "one HTML page", "to hand to a colleague: rollouts, turns, tokens"),
    ("parquet", "Parquet", "a folder, one file a view"),
    ("jsonl", "JSON lines", "one rollout with its messages a line"),
    ("duckdb", "a .duckdb file", "for other programs that speak SQL"),
    ("sft", "rows for SFT", "input_ids and loss_mask, as recorded"),
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
        if self.unchanged(tuple(map(id, rows)), grid.order):
            return
        chosen = [row for row in rows if self.matches(row)]
        grid.show(await self.desk.reader.work(grid.prepare, chosen))
        self.header.crumbs = "runs"
        all_of_them = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
        hidden = f"{len(chosen)} of {all_of_them}" if self.filter_text else all_of_them
        self.header.note = hidden if rows else "no runs yet: r starts one"

    async def action_open(self) -> None:
        if (row := self.query_one(Grid).current) is not None:
            await self.desk.open_run(row["run_id"])

    async def arrive(self, text: str) -> None:
        """`:runs ID`."""
        await self.desk.open_id(text)

    def action_run(self) -> None:
        from openforge_tui.screens.run_form import RunForm

        self.app.push_screen(RunForm("run"))

    def action_cancel(self) -> None:
        row = self.query_one(Grid).current
        if row is None:
            return
        run_id = row["run_id"]
        if row["state"] not in GOING_ON:
            return self.say(f"{run_id} does not go on: it is {row['state']}")
        question = Confirm(
            f"Cancel run {run_id}?",
            detail="Rollouts that are under way get no reward; what was graded stays.",
            word=self.desk.target_name if self.desk.is_remote else "",
        )
        self.app.push_screen(question, lambda yes: self._start("cancel", ["cancel", run_id]) if yes else None)

    def action_hold(self) -> None:
        row = self.query_one(Grid).current
        if row is not None:
            self.desk.hold(row["run_id"], row["state"])

    def action_export(self) -> None:
        row = self.query_one(Grid).current
        if row is not None:
            run_id = row["run_id"]
            self.app.push_screen(
                Choose(f"Export {run_id} as", EXPORTS),
                lambda kind: self._start("export", ["export", run_id, "--format", kind]) if kind else None,
            )

    def _start(self, title: str, words: Sequence[str]) -> None:
        self.desk.start(title, words)

    async def action_log(self) -> None:
        from openforge_tui.screens.run_log import RunLogScreen

        if (row := self.query_one(Grid).current) is not None:
            await self.app.push_screen(RunLogScreen(row["run_id"]))

    async def on_grid_opened(self, event: Grid.Opened) -> None:
        await self.action_open()
