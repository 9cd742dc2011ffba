"""Mode 3: the model calls in flight now, over every run that goes on."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.widget import Widget
from textual.widgets import Static

from openforge.store.fold import Answered
from openforge_tui.in_flight import GROUPS, InFlight, Standing, by_group, call_rows, just_answered
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid

NOTHING = "\n\n".join(
    (
        "Nothing is running.",
        "While a run or a training goes on, each model call stands here for as long as it is being answered: how old it"
        " is, in which stage, by which shard, of which harness and rollout; enter opens the rollout.",
        "2 and then r starts a run, 5 and then r a training; `openforge run` does the same in a terminal.",
    )
)
_SLOW_S, _STUCK_S = 30.0, 120.0
_RUNS = 4  # that have a line above the calls


def _age_style(age_s: float) -> str:
    return "red" if age_s >= _STUCK_S else "yellow" if age_s >= _SLOW_S else ""


EACH = (
    Column("age_s", "age", text=lambda value: f"{value:.1f} s", style=_age_style, right=True),
    Column("stage"),
    Column("shard", right=True),
    Column("harness"),
    Column("task"),
    Column("sample", "n", right=True),
    Column("dialect"),
    Column("stream", "answer"),
    Column("run"),
    Column("call_id", "call"),
)
GROUPED = (
    Column("group", "calls of"),
    Column("calls", right=True),
    Column("rollouts", right=True),
    Column("oldest", text=lambda value: f"{value:.1f} s", style=_age_style, right=True),
    Column("mean", "mean age", text=lambda value: f"{value:.1f} s", right=True),
    Column("tokens_s", "tokens/s", text=lambda value: f"{value:.0f}", right=True),
    Column("stages"),
)


class LiveScreen(View):
    SCOPE = "live"
    MODE = "live"
    PERIOD_S = 1.0
    BINDINGS: ClassVar = bindings("live")
    DEFAULT_CSS = """
    LiveScreen #runs, LiveScreen #nothing { height: auto; padding: 0 1; }
    LiveScreen #nothing { padding: 1 2; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._group = ""
        self._in_flight: InFlight | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield Static(id="runs", markup=False)
        yield Static(NOTHING, id="nothing", markup=False)
        yield Grid(EACH, "key", id="each")
        yield Grid(GROUPED, "key", id="grouped")

    @property
    def grid(self) -> Grid:
        return self.query_one("#grouped" if self._group else "#each", Grid)

    async def on_unmount(self) -> None:
        if self._in_flight is not None:
            await self._in_flight.close()

    async def load(self) -> None:
        self._in_flight = self._in_flight or InFlight(self.desk.reader.store_root)
        standings = await self._in_flight.look()
        running = [standing for standing in standings if standing.fresh or standing.trouble]
        answered = just_answered(await self.desk.reader.followed() if running else [], time.time())
        rows = call_rows(standings)
        chosen = [row for row in rows if self.matches(row)]
        shown = by_group(chosen, self._group, answered) if self._group else chosen
        for name in ("#each", "#grouped"):
            self.query_one(name, Grid).display = bool(running) and name == f"#{self.grid.id}"
        self.query_one("#nothing").display = not running
        self.grid.show(self.grid.prepare(shown))
        self._show_runs(running, answered)
        self.header.crumbs = "live" + (f" › by {self._group}" if self._group else "")
        self.header.note = _note(len(chosen), len(rows), len(running), bool(self.filter_text))

    def _show_runs(self, running: Sequence[Standing], answered: Mapping[str, Sequence[Answered]]) -> None:
        lines = [
            Text(f"⚠ {visible(standing.trouble)}", "bold yellow")
            if standing.trouble
            else Text(visible(standing.summary(answered.get(standing.run_id, ()))))
            for standing in sorted(running, key=lambda standing: not standing.trouble)
        ]
        if len(lines) > _RUNS:
            lines = [*lines[:_RUNS], Text(f"{len(lines) - _RUNS} more runs: `openforge status` lists all", "dim")]
        told = self.query_one("#runs", Static)
        told.update(Text("\n").join(lines))
        told.display = bool(lines)

    async def action_open(self) -> None:
        row = self.grid.current
        if row is None:
            return
        if self._group:
            self._group = ""
            self.set_filter(row["filter"])
            self._focus_grid()
        else:
            await self.desk.open_rollout(row["rollout_id"], call_id=row["call_id"])

    async def on_grid_opened(self, event: Grid.Opened) -> None:
        await self.action_open()

    def action_group(self) -> None:
        self._group = GROUPS[(GROUPS.index(self._group) + 1) % len(GROUPS)]
        self._focus_grid()
        self.look_again()

    def _focus_grid(self) -> None:
        self.grid.display = True
        self.grid.focus()

    def copyable(self) -> str:
        row = self.grid.current
        return str(row["group"] if self._group else row["rollout_id"]) if row is not None else ""


def _note(chosen: int, every: int, runs: int, filtered: bool) -> str:
    if not runs:
        return "nothing is running"
    calls = f"{chosen} of {every} calls" if filtered else f"{every} call{'s' * (every != 1)} in flight"
    return f"{calls}, {runs} run{'s' * (runs != 1)}"
