"""The rollouts of a run: each for itself, or grouped; filtered, marked, compared."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import ClassVar

from textual.widget import Widget

from openforge.store.lists import UNDER_WAY, Row
from openforge_tui.screens.dialog import Confirm
from openforge_tui.screens.states import state_style
from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid, Layout

GROUPS = ("", "task", "harness", "state")


def _reward_style(reward: float | None) -> str:
    return "" if reward is None else "green" if reward > 0 else "yellow"


EACH = (
    Column("mark", " "),
    Column("name", "rollout"),
    Column("state", style=state_style),
    Column("reward", text=lambda value: f"{value:g}", style=_reward_style, right=True),
    Column("calls", right=True),
    Column("completion_tokens", "sampled", right=True),
    Column("prompt_tokens", "tokens in", right=True),
    Column("seconds", "s", right=True),
    Column("samples", right=True),
    Column("attempt", "try", right=True),
    Column("step", right=True),
    Column("error_class", "error", style=lambda _: "red"),
    Column("detail"),
)
GROUPED = (
    Column("group"),
    Column("rollouts", right=True),
    Column("going_on", "going on", right=True),
    Column("done", right=True),
    Column("failed", right=True),
    Column("error", right=True, style=lambda count: "red" if count else "dim"),
    Column("reward", text=lambda value: f"{value:.2f}", right=True),
    Column("calls", text=lambda value: f"{value:.1f}", right=True),
    Column("sampled", text=lambda value: f"{value:.0f}", right=True),
    Column("seconds", "s", text=lambda value: f"{value:.1f}", right=True),
)


class RolloutsScreen(View):
    SCOPE = "rollouts"
    MODE = "runs"
    BINDINGS: ClassVar = bindings("rollouts")

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._group = ""
        self._faults_only = False
        self._marked: set[str] = set()

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(EACH, "rollout_id", id="each")
        grouped = Grid(GROUPED, "group", id="grouped")
        grouped.display = False
        yield grouped

    @property
    def grid(self) -> Grid:
        return self.query_one("#grouped" if self._group else "#each", Grid)

    async def load(self) -> None:
        rows = await self.desk.reader.rollouts(self.run_id)
        grid = self.grid
        if self.unchanged(rows, self._group, self._faults_only, frozenset(self._marked), grid.order):
            return
        chosen, layout = await self.desk.reader.work(self._prepare, rows, grid)
        grid.show(layout)
        going_on = sum(row["state"] in UNDER_WAY for row in rows)
        self.header.crumbs = f"runs › {self.run_id}" + (f" by {self._group}" if self._group else "")
        facts = [
            f"{len(chosen)} of {len(rows)} rollouts" if len(chosen) < len(rows) else f"{len(rows)} rollouts",
            "faults only" if self._faults_only else "",
            f"{going_on} going on" if going_on else "",
            f"{len(self._marked)} marked" if self._marked else "",
        ]
        self.header.note = " · ".join(filter(None, facts))

    def _prepare(self, rows: Sequence[Row], grid: Grid) -> tuple[list[Row], Layout]:
        """Those that are wanted, and how they will be drawn; for any thread."""
        chosen = [row for row in rows if self.matches(row) and not (self._faults_only and is_good(row))]
        shown = by_group(chosen, self._group) if self._group else [self._shown(row) for row in chosen]
        return chosen, grid.prepare(shown)

    def _shown(self, row: Row) -> Row:
        name = row["rollout_id"].partition(".")[2]
        return {**row, "name": name, "mark": "●" if row["rollout_id"] in self._marked else " "}

    async def action_open(self) -> None:
        row = self.grid.current
        if row is None:
            return
        if self._group:
            name, self._group = self._group, ""
            self._show_grid()
            self.set_filter(f"-l {name}={row['group']}")
        else:
            await self.desk.open_rollout(row["rollout_id"])

    async def on_grid_opened(self, event: Grid.Opened) -> None:
        await self.action_open()

    def action_group(self) -> None:
        self._group = GROUPS[(GROUPS.index(self._group) + 1) % len(GROUPS)]
        self._show_grid()

    def _show_grid(self) -> None:
        for grid in self.query(Grid):
            grid.display = grid is self.grid
        self.grid.focus()
        self.look_again()

    def action_faults(self) -> None:
        self._faults_only = not self._faults_only
        self.look_again()

    def action_mark(self) -> None:
        row = self.grid.current
        if row is not None and not self._group:
            self._marked ^= {row["rollout_id"]}
            self.grid.move_cursor(row=min(self.grid.cursor_row + 1, self.grid.row_count - 1))
            self.look_again()

    async def action_compare(self) -> None:
        from openforge_tui.screens.compare import CompareScreen

        row = self.grid.current
        chosen = sorted(self._marked)
        if len(chosen) < 2 and row is not None and not self._group and row["rollout_id"] not in self._marked:
            chosen.append(row["rollout_id"])
        if len(chosen) == 2:
            await self.app.push_screen(CompareScreen(*chosen))
        else:
            self.say(f"two are compared, {len(self._marked)} marked: mark one with space, then v on the other")

    async def action_log(self) -> None:
        from openforge_tui.screens.run_log import RunLogScreen

        await self.app.push_screen(RunLogScreen(self.run_id))

    def action_cancel(self) -> None:
        names = self._targets()
        rows = {row["rollout_id"]: row for row in self.grid.shown.rows if not self._group}
        going_on = [name for name in names if name in rows and rows[name]["state"] in UNDER_WAY]
        if not going_on:
            self.say("nothing here goes on: it has ended already")
            return
        what = going_on[0] if len(going_on) == 1 else f"{len(going_on)} rollouts"
        self.app.push_screen(
            Confirm(f"Cancel {what}?", detail="It gets no reward and is not tried again."),
            lambda yes: self._cancel(going_on) if yes else None,
        )

    def _cancel(self, names: Sequence[str]) -> None:
        self.desk.start("cancel", ["cancel", *names])
        self._marked.clear()

    def _targets(self) -> list[str]:
        if self._marked or self._group:
            return sorted(self._marked)
        row = self.grid.current
        return [] if row is None else [row["rollout_id"]]

    def action_retry(self) -> None:
        row = self.grid.current
        if row is None or self._group:
            return
        words = ["run", "--tasks", row["task"], "--harness", row["harness"], "--samples", "1"]
        words += [] if row["seed"] is None else ["--seed", str(row["seed"])]
        self.app.push_screen(
            Confirm("Run it again?", detail=f"openforge {' '.join(words)}\nAs a run of its own, with today's policy."),
            lambda yes: self._start(words) if yes else None,
        )

    def _start(self, words: Sequence[str]) -> None:
        self.desk.start("retry", words)


def is_good(row: Row) -> bool:
    """Whether a rollout did not go wrong (or has not, so far)."""
    return row["state"] in UNDER_WAY or (row["state"] == "done" and (row["reward"] or 0) > 0)


def by_group(rows: Sequence[Row], name: str) -> list[Row]:
    """One row a value of column `name`; the worst mean reward first. Means are over what has the number."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row[name]), []).append(row)
    found = [_group_row(value, members) for value, members in groups.items()]
    return sorted(found, key=lambda row: (row["reward"] is None, row["reward"] or 0, row["group"]))


def _group_row(value: str, rows: Sequence[Row]) -> Row:
    states = [row["state"] for row in rows]
    return {
        "group": value,
        "rollouts": len(rows),
        "going_on": sum(state in UNDER_WAY for state in states),
        "done": states.count("done"),
        "failed": states.count("failed"),
        "error": states.count("error") + states.count("lost"),
        "reward": _mean(rows, "reward"),
        "calls": _mean([row for row in rows if row["calls"] or row["seconds"] is not None], "calls"),  # that began
        "sampled": _mean(rows, "completion_tokens"),
        "seconds": _mean(rows, "seconds"),
    }


def _mean(rows: Sequence[Row], name: str) -> float | None:
    known = [float(row[name]) for row in rows if row[name] is not None]
    return fmean(known) if known else None
