"""Mode 6: the targets of this configuration beside one another, and what one of them changes. Read only."""

import time
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.widget import Widget
from textual.widgets import Static

from openforge.config import Loaded
from openforge.config.diff import diff
from openforge.errors import OpenForgeError
from openforge_tui.aside import aside
from openforge_tui.machine import Finding
from openforge_tui.promote import TODAY, lacking, target_rows
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid, Row

_GOOD_S = 10.0  # how long an answer of Docker is good for
_KINDS = {"kubernetes": "bold magenta", "wrong": "bold red", "local": "dim"}
_STATES = {"missing": "bold red", "note": "yellow"}
COLUMNS = (
    Column("here", " "),
    Column("target"),
    Column("kind", style=lambda kind: _KINDS.get(kind, "")),
    Column("context"),
    Column("namespace"),
    Column("registry"),
    Column("queue"),
    Column("gpu", right=True),
    Column("problem"),
)


class PromoteScreen(View):
    SCOPE = "promote"
    MODE = "promote"
    PERIOD_S = 2.0
    BINDINGS: ClassVar = bindings("promote")
    DEFAULT_CSS = """
    PromoteScreen #today { height: auto; padding: 1 1 0 1; background: $boost; }
    """

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(COLUMNS, "target")
        yield Static(Text(TODAY), id="today")

    async def load(self) -> None:
        rows = await self.desk.reader.work(target_rows, self.desk.opening.load)
        here = self.desk.target_name
        made = [{**row, "here": "●" if row["target"] == here else ""} for row in rows]
        chosen = [row for row in made if self.matches(row)]
        grid = self.query_one(Grid)
        grid.show(await self.desk.reader.work(grid.prepare, chosen))
        self.header.crumbs = "targets"
        count = f"{len(chosen)} of {len(rows)}" if self.filter_text else f"{len(rows)}"
        self.header.note = f"{count} targets; this app is at {here} (●)"

    def on_grid_opened(self, event: Grid.Opened) -> None:
        self.action_diff()

    def action_diff(self) -> None:
        row = self.query_one(Grid).current
        if row is None:
            return
        if row["problem"]:
            self.say(str(row["problem"]), error=True)
        else:
            self.app.push_screen(DifferenceScreen(str(row["target"])))


class DifferenceScreen(View):
    """What a target changes against the one this app is at, and what is missing to run there."""

    MODE = "promote"
    PERIOD_S = 2.0
    DEFAULT_CSS = """
    DifferenceScreen #lacking { height: auto; max-height: 50%; padding: 0 1; background: $boost; }
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        self._asked_at = -_GOOD_S  # by the clock of time.monotonic()

    def compose_body(self) -> Iterable[Widget]:
        here, there = self.desk.target_name, self.target
        columns = (
            Column("key", style=lambda key: "bold"),
            Column("here", here if here != there else f"{here} (here)", text=_value),
            Column("there", there, text=_value, style=lambda value: "cyan"),
            Column("set_there", f"set by ({there})", style=lambda source: "dim"),
            Column("set_here", f"set by ({here})", style=lambda source: "dim"),
        )
        yield Grid(columns, "key")
        yield Static(Text("asking what is missing there …", "dim"), id="lacking", markup=False)

    async def load(self) -> None:
        load = self.desk.opening.load
        here, there = await self.desk.reader.work(load), await self.desk.reader.work(load, self.target)
        rows: list[Row] = [change._asdict() for change in diff(here, there)]
        chosen = [row for row in rows if self.matches(row)]
        grid = self.query_one(Grid)
        grid.show(await self.desk.reader.work(grid.prepare, chosen))
        self.header.crumbs = f"targets › {self.target}"
        count = f"{len(chosen)} of {len(rows)}" if self.filter_text else f"{len(rows)}"
        name = here.config.target.name
        verb = "value differs" if len(rows) == 1 else "values differ"
        self.header.note = f"{count} {verb} from {name}" if rows else f"nothing differs from {name}"
        if time.monotonic() - self._asked_at > _GOOD_S:
            self._asked_at = time.monotonic()
            self._show_lacking(there)

    @work(group="lacking")
    async def _show_lacking(self, there: Loaded) -> None:
        try:
            found = await aside(partial(lacking, there), f"lacking {self.target}")
        except OpenForgeError as error:
            found = [Finding(self.target, "missing", error.summary, error.hint)]
        self.query_one("#lacking", Static).update(_described(found, self.target))

    def action_refresh(self) -> None:
        self._asked_at = -_GOOD_S
        super().action_refresh()

    def copyable(self) -> str:
        row = self.query_one(Grid).current
        return f"{row['key']} = {_value(row['there'])}" if row else ""


def _described(found: list[Finding], target: str) -> Text:
    text = (
        Text("To run there:\n", "bold") if found else Text("Nothing that can be known from here is missing.\n", "green")
    )
    for finding in found:
        sign = "✗" if finding.state == "missing" else "!"
        text.append(f"{sign} {finding.check}: ", _STATES[finding.state]).append(visible(finding.found))
        text.append(f"\n  next: {visible(finding.next)}\n" if finding.next else "\n", "cyan")
    return text.append(f"$ openforge up --target {target}   $ openforge run --target {target}", "dim")


def _value(value: Any) -> str:
    return visible(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
