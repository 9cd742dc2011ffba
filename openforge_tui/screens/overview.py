"""Mode 1: this machine, clusters, images, policies, runs under way, disk; what is missing, and what mends it.

Each part is asked for itself, beside the app, and shown when it comes: a program that hangs holds up its own part.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.widget import Widget
from textual.widgets import Static

from openforge_tui.aside import aside
from openforge_tui.harnesses import Known, known_harnesses
from openforge_tui.jobs import duration
from openforge_tui.overview import PARTS, Part, Row, asked, not_removed
from openforge_tui.screens.dialog import Choose, Confirm, Reading
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid

_SIGNS = {"ok": "✓ ok", "note": "! note", "missing": "✗ missing", "asking": "… asking"}
_STYLES = {"ok": "green", "note": "yellow", "missing": "bold red", "asking": "dim"}
_NAME = 22  # columns of a name
_APART_S = 0.1  # parts are begun: what all of them import at once would hold up the keys
_COMMANDS = ("./just", "apt-get")  # what a person can type, and this app does not run
COLUMNS = (
    Column("section", "part", style=lambda part: "bold"),
    Column("name", text=lambda name: _short(name)),
    Column("state", text=lambda state: _SIGNS.get(state, state), style=lambda state: _STYLES.get(state, "")),
    Column("found"),
    Column("next", style=lambda command: "cyan"),
)


class OverviewScreen(View):
    SCOPE = "overview"
    MODE = "overview"
    BINDINGS: ClassVar = bindings("overview")
    DEFAULT_CSS = """
    OverviewScreen #detail { height: auto; max-height: 5; padding: 0 1; background: $boost; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, list[Row]] = {}
        self._asked_at: dict[str, float] = {}  # by the clock of time.monotonic(); of the parts that are good
        self._asking: set[str] = set()
        self._busy: set[str] = set()

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(COLUMNS, "id")
        yield Static(id="detail", markup=False)

    async def load(self) -> None:
        if self._busy - self.desk.running.keys():
            self._asked_at.clear()  # what has ended may have changed anything
        self._busy = set(self.desk.running)
        for part in PARTS:
            if self._is_due(part):
                self._asking.add(part.name)
                self.set_timer(_APART_S * len(self._asking), partial(self._ask, part))
        await self._show()

    def _is_due(self, part: Part) -> bool:
        at = self._asked_at.get(part.name)
        return part.name not in self._asking and (at is None or time.monotonic() - at >= part.period_s)

    @work(group="parts")
    async def _ask(self, part: Part) -> None:
        try:
            self._found[part.name] = await aside(partial(asked, part, self.desk.opening.load), f"overview {part.name}")
        except Exception as error:  # a fault of ours stands in its part, and is written down
            self._found[part.name] = [self.fault(part.name, error)]
        finally:
            self._asked_at[part.name] = time.monotonic()
            self._asking.discard(part.name)
        self.look_again()

    def fault(self, part: str, error: Exception) -> Row:
        """A part that could not be read."""
        import traceback

        path = self.desk.note_fault("".join(traceback.format_exception(error)))
        told = f"{type(error).__name__}: {error} · written to {path}"
        return {"part": part, "name": part, "state": "missing", "found": told, "next": ""}

    def action_refresh(self) -> None:
        self._asked_at.clear()
        super().action_refresh()

    # Showing

    async def _show(self) -> None:
        rows = [row for part in PARTS for row in self._rows_of(part.name)]
        chosen = [row for row in rows if self.matches(row)]
        grid = self.query_one(Grid)
        grid.show(await self.desk.reader.work(grid.prepare, _in_sections(chosen, grouped=grid.ordered_by is None)))
        count = {state: sum(row["state"] == state for row in rows) for state in ("missing", "note")}
        told = f"{count['missing']} missing, {count['note']} worth a look"
        if self.filter_text:
            told = f"{len(chosen)} of {len(rows)} rows; {told}"
        self.header.crumbs = "overview"
        self.header.note = told + (f"; asking: {', '.join(sorted(self._asking))}" if self._asking else "")
        self._show_detail()

    def _rows_of(self, part: str) -> list[Row]:
        waiting = {"part": part, "name": part, "state": "asking", "found": "", "next": ""}
        return self._found.get(part, [waiting])

    def on_grid_moved(self, event: Grid.Moved) -> None:
        self._show_detail()

    def _show_detail(self) -> None:
        row, text = self.query_one(Grid).current, Text()
        if row is not None:
            at = self._asked_at.get(row["part"])
            age = f"   asked {duration(time.monotonic() - at)} ago" if at is not None else ""
            text.append(visible(f"{row['name']}: {row['found']}")).append(age, "dim")
            if row["next"]:
                text.append("\nnext: ", "dim").append(visible(row["next"]), "bold cyan").append(self._offer(row), "dim")
        self.query_one("#detail", Static).update(text)

    def _offer(self, row: Row) -> str:
        doing = "" if self.desk.readonly else "   enter does it," if _argv(row["next"]) else "   enter shows it,"
        return f"{doing} c copies it"

    # Doing

    def copyable(self) -> str:
        row = self.query_one(Grid).current
        return str(row["next"] or row["found"]) if row else ""

    def on_grid_opened(self, event: Grid.Opened) -> None:
        if self.check_action("fix", ()):
            self.action_fix()

    def action_fix(self) -> None:
        row = self.query_one(Grid).current
        if row is None or not row["next"]:
            self.say("there is nothing to mend here")
        elif argv := _argv(row["next"]):
            self.ask_to_start(str(row["name"]), argv, detail=str(row["found"]))
        else:
            typed = str(row["next"]).startswith(_COMMANDS)
            title = "Type this in a shell (c copies it):" if typed else "What to do:"
            self.app.push_screen(Reading(title, str(row["next"])))

    def action_up(self) -> None:
        detail = "The cluster elsewhere is tried, not made." if self.desk.is_remote else "What is there already stays."
        self.ask_to_start("up", ["up"], detail=detail)

    def action_down(self) -> None:
        if self.desk.is_remote:
            self.desk.tell(not_removed(self.desk.target_name))
            return
        self.ask_to_start("down", ["down"], detail="Whatever runs in the cluster ends; runs, images and policies stay.")

    def action_build(self) -> None:
        self.ask_to_start("build images", ["images", "build"], detail="Those that are there stay.")

    def action_validate(self) -> None:
        self.ask_to_start(
            "validate tasks", ["tasks", "validate"], detail="Each task is run with and without its oracle."
        )

    async def action_install(self) -> None:
        found = await self.desk.reader.work(_harnesses, self.desk.loaded.project_dir)

        def chosen(name: str | None) -> None:
            if name:
                self._start(f"install {name}", ["harness", "install", name])

        await self.app.push_screen(Choose("Install which harness?", found), chosen)

    def action_run(self) -> None:
        from openforge_tui.screens.run_form import RunForm

        self.app.push_screen(RunForm("run"))

    def ask_to_start(self, title: str, argv: Sequence[str], *, detail: str = "") -> None:
        """Start `openforge ARGV …` once yes was said; for a cluster elsewhere, its target is typed."""
        command = shlex.join(("openforge", *self.desk.jobs.words(argv)))
        word = self.desk.target_name if self.desk.is_remote else ""
        start: Callable[[bool | None], None] = lambda yes: self._start(title, argv) if yes else None  # noqa: E731
        self.app.push_screen(Confirm(f"Run `{command}`?", detail=detail, word=word), start)

    def _start(self, title: str, argv: Sequence[str]) -> None:
        self.desk.start(title, argv)
        self.look_again()


def _short(name: str) -> str:
    """So that what was found has its room; the line below the list shows the whole."""
    name = name.removeprefix("openforge/")
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _argv(command: str) -> list[str]:
    """The words after `openforge` of a command that this app may run; empty for any other text."""
    if not command.startswith("openforge "):
        return []
    return shlex.split(command)[1:]


def _in_sections(rows: Sequence[Row], *, grouped: bool) -> list[Row]:
    """With an id for each row, and the part's name on its first row alone while they stand together."""
    seen: dict[str, int] = {}
    made, before = [], ""
    for row in rows:
        name = f"{row['part']} {row['name']}"
        seen[name] = seen.get(name, 0) + 1
        section = "" if grouped and row["part"] == before else row["part"]
        made.append({**row, "id": f"{name} {seen[name]}", "section": section})
        before = row["part"]
    return made


def _harnesses(project: Path) -> list[tuple[str, str, str]]:
    return [
        (known.name, f"{known.name} {known.manifest.version}" if known.manifest else known.name, _about(known))
        for known in known_harnesses(project)
    ]


def _about(known: Known) -> str:
    return known.manifest.spec.summary if known.manifest and not known.installed else known.state
