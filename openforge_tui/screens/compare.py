"""Two rollouts side by side, turn by turn; where they part is marked."""

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import zip_longest
from typing import ClassVar

from rich.text import Text
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from openforge.store.transcript import Row, Transcript, Turn
from openforge_tui.screens.rollout import turn_row
from openforge_tui.screens.view import View
from openforge_tui.transcript import Look, render_turn, visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid
from openforge_tui.widgets.pane import Pane

COLUMNS = (
    Column("turn", " ", right=True),
    Column("same", " ", style=lambda same: "dim" if same == "=" else "bold yellow"),
    Column("left"),
    Column("right"),
)


class CompareScreen(View):
    SCOPE = "compare"
    DEFAULT_CLASSES = "-panes"
    MODE = "runs"
    FILTERS = False
    BINDINGS: ClassVar = bindings("compare")
    DEFAULT_CSS = """
    CompareScreen Grid { height: 30%; scrollbar-size-horizontal: 0; border-bottom: solid $panel; }
    CompareScreen .side { width: 1fr; }
    CompareScreen #a { border-right: solid $panel; }
    CompareScreen Static { height: auto; padding: 0 1; background: $surface; }
    """

    def __init__(self, left: str, right: str) -> None:
        super().__init__()
        self._ids = (left, right)
        self._found: tuple[Transcript, Transcript] | None = None

    def compose_body(self) -> Iterable[Widget]:
        yield Grid(COLUMNS, "turn")
        with Horizontal():
            for side in ("a", "b"):
                with Vertical(classes="side", id=side):
                    yield Static(id=f"head-{side}", markup=False)
                    yield Pane(id=f"pane-{side}")

    async def load(self) -> None:
        reader = self.desk.reader
        left, right = await asyncio.gather(*map(reader.transcript, self._ids))
        self._found = (left, right)
        rows = paired(left, right)
        grid = self.query_one(Grid)
        grid.show(await reader.work(grid.prepare, rows))
        for side, found in (("a", left), ("b", right)):
            self.query_one(f"#head-{side}", Static).update(_head(found))
        differing = sum(row["same"] != "=" for row in rows)
        self.header.crumbs = f"runs › {left.rollout['run_id']} › compare"
        self.header.note = f"{differing} of {len(rows)} turns differ"
        self._show()

    def on_grid_moved(self, event: Grid.Moved) -> None:
        self._show()

    def _show(self) -> None:
        look = Look(self.desk.has_color, lift="f in the rollout's own screen shows them")
        row = self.query_one(Grid).current
        for side, name in (("a", "left_turn"), ("b", "right_turn")):
            turn: Turn | None = row[name] if row else None
            key = turn and turn.call["call_id"]
            draw = partial(render_turn, turn, look) if turn else partial(Text, "it had ended", "dim")
            self.query_one(f"#pane-{side}", Pane).show(draw, key)

    def action_difference(self) -> None:
        grid = self.query_one(Grid)
        rows = grid.shown.rows
        order = [*range(grid.cursor_row + 1, len(rows)), *range(grid.cursor_row + 1)]
        for number in order:
            if rows[number]["same"] != "=":
                grid.move_cursor(row=number)
                return
        self.say("they do not differ")

    def copyable(self) -> str:
        return " ".join(self._ids)


def paired(left: Transcript, right: Transcript) -> list[Row]:
    """One row a turn number: what either did, and whether it is the same (`=`) or not (`≠`)."""
    rows = []
    for number, (one, other) in enumerate(zip_longest(left.turns, right.turns), 1):
        same = one is not None and other is not None and _deed(one) == _deed(other)
        rows.append(
            {
                "turn": number,
                "same": "=" if same else "≠",
                "left": turn_row(one)["what"] if one else "",
                "right": turn_row(other)["what"] if other else "",
                "left_turn": one,
                "right_turn": other,
            }
        )
    return rows


def _deed(turn: Turn) -> list[object]:
    """What a turn says and asks for; ids of calls are made up anew each time."""
    return [
        (
            message["role"],
            message["text"],
            message["reasoning"],
            [(call["name"], call["arguments"]) for call in message["tool_calls"] or ()],
        )
        for message in turn.messages
        if message["role"] != "system"
    ]


def _head(found: Transcript) -> Text:
    row = found.rollout
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:g}"
    facts = f"{row['state']} · {reward} · {row['calls']} calls · {row['completion_tokens'] or 0} sampled"
    return Text(visible(row["rollout_id"].partition(".")[2]), "bold").append(f"\n{facts}", "not bold dim")
