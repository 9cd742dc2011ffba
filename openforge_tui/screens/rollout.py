"""One rollout: its turns on the left, the chosen one on the right, down to its tokens; played again as it happened."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import work
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Tab, Tabs

from openforge.errors import OpenForgeError
from openforge.store.asked import read_asked
from openforge.store.lists import UNDER_WAY
from openforge.store.transcript import Row, Transcript, Turn, read_turn_tokens, read_turn_wire
from openforge.wire import Found, Said, images_of
from openforge_tui import rollout_log
from openforge_tui.screens.image import ImageScreen
from openforge_tui.screens.view import View
from openforge_tui.transcript import Look, render_outcome, render_tokens, render_turn, render_wire, visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid
from openforge_tui.widgets.pane import Pane

TABS = ("messages", "tokens", "raw", "outcome", "log")
COLUMNS = (
    Column("turn", " ", right=True),
    Column("seconds", "s", text=lambda value: f"{value:.1f}", right=True),
    Column("sampled", "tok", right=True),
    Column("what"),
)
_LONGEST_STEP_S = 3.0  # of a wait that is played again
_TOKEN_TURNS = 16  # whose tokens are kept


class RolloutScreen(View):
    SCOPE = "rollout"
    DEFAULT_CLASSES = "-panes"
    MODE = "runs"
    BINDINGS: ClassVar = bindings("rollout")
    DEFAULT_CSS = """
    RolloutScreen Grid { width: 44; scrollbar-size-horizontal: 0; border-right: solid $panel; }
    RolloutScreen #right { width: 1fr; }
    RolloutScreen.-narrow Grid { width: 30; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012

    def __init__(self, rollout_id: str, *, call_id: str | None = None) -> None:
        super().__init__()
        self.rollout_id = rollout_id
        self.found: Transcript | None = None
        self._wanted_call = call_id
        self._attempt: int | None = None
        self._full = False
        self._stamp: object = None
        self._tokens: dict[str, list[Row]] = {}
        self._had_images = False
        self._shown_turns: int | None = None  # while it is played: how many have happened
        self._speed = 1.0
        self._timer: Timer | None = None

    def compose_body(self) -> Iterable[Widget]:
        with Horizontal():
            yield Grid(COLUMNS, "call_id")
            with Vertical(id="right"):
                yield Tabs(*(Tab(name, id=name) for name in TABS))
                yield Pane()

    @property
    def tab(self) -> str:
        return self.query_one(Tabs).active or TABS[0]

    @property
    def turn(self) -> Turn | None:
        """The turn under the cursor."""
        row = self.query_one(Grid).current
        return row["record"] if row else None

    async def load(self) -> None:
        run_id = self.rollout_id.partition(".")[0]
        rows = await self.desk.reader.rollouts(run_id)
        now = next((row for row in rows if row["rollout_id"] == self.rollout_id), None)
        stamp = now and (now["attempt"], now["state"], now["calls"], now["reward"], now["samples"])
        if self.found is None or stamp != self._stamp:
            found = await self.desk.reader.transcript(self.rollout_id, self._attempt)
            self.found, self._stamp = found, stamp
            self._tokens.clear()
            await self._list_turns()
        elif self.filter_text or self._wanted_call:
            await self._list_turns()
        self._tell()
        if self.tab == "log" and self._going_on:
            self._show_turn()

    @property
    def _going_on(self) -> bool:
        return self.found is not None and self.found.rollout["state"] in UNDER_WAY

    async def _list_turns(self) -> None:
        assert self.found is not None
        turns = self.found.turns[: self._shown_turns]
        rows = [row for turn in turns if self._passes(row := turn_row(turn))]
        grid = self.query_one(Grid)
        grid.show(await self.desk.reader.work(grid.prepare, rows))
        if self._wanted_call and grid.go_to(self._wanted_call):
            self._wanted_call = None
        self._show_turn()

    def _passes(self, row: Row) -> bool:
        turn: Turn = row["record"]
        texts = {"text": "\n".join(_texts(turn))}
        return self.matches({**turn.call, **texts, "turn": turn.number})

    def _tell(self) -> None:
        if self.found is None:
            return
        row = self.found.rollout
        reward = "" if row["reward"] is None else f" · reward {row['reward']:g}"
        attempt = f" · attempt {row['attempt']}" if row["attempt"] else ""
        self.header.crumbs = (
            f"runs › {row['run_id']} › {self.rollout_id.partition('.')[2]} · {row['state']}{reward}{attempt}"
        )
        turns, shown = len(self.found.turns), self.query_one(Grid).row_count
        note = f"{turns} turns" if shown == turns else f"{shown} of {turns} turns"
        if self._timer is not None:
            note = f"▶ {self._speed:g}x · {note}"
        self.header.note = note

    # What is on the right

    async def on_grid_moved(self, event: Grid.Moved) -> None:
        self._show_turn()

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        self._show_turn()

    @work(group="turn", exclusive=True)
    async def _show_turn(self) -> None:
        found, turn, tab, pane = self.found, self.turn, self.tab, self.query_one(Pane)
        if found is None:
            return
        if turn is not None and turn.unread and turn.asked is None:
            turn.asked = await self._asked_of(turn)
        if self._had_images != (has_images := bool(self._images)):
            self._had_images = has_images
            self.refresh_bindings()
        key = (tab, turn and turn.call["call_id"], self._full)
        pane.follow = tab == "log" and self._going_on
        look = Look(self.desk.has_color, self._full, "f shows them")
        if tab == "outcome":
            pane.show(partial(render_outcome, found), key)
        elif tab == "log":
            pane.show(partial(self._log, self._full), key)
        elif turn is None:
            pane.show(lambda: Text("no model call yet", "dim"))
        elif tab == "messages":
            pane.show(partial(render_turn, turn, look), key)
        elif tab == "tokens":
            rows = await self._tokens_of(turn)
            pane.show(partial(render_tokens, rows, look), key)
        else:
            wire = await self._of_call(read_turn_wire, turn)
            pane.show(partial(render_wire, wire, look), key)

    async def _asked_of(self, turn: Turn) -> list[Said] | None:
        assert self.found is not None
        row, reader = self.found.rollout, self.desk.reader
        call = turn.call["call_id"]
        try:
            asked = await reader.work(read_asked, reader.store_root, self.rollout_id, row["attempt"], [call])
        except OpenForgeError as error:
            self.desk.tell(error)
            return None
        return asked.get(call, [])

    @property
    def _images(self) -> list[Found]:
        """Those of the turn under the cursor."""
        return images_of(self.turn.asked or ()) if self.turn else []

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return bool(self._images) if action == "images" else super().check_action(action, parameters)

    def action_images(self) -> None:
        if self.turn is not None and (images := self._images):
            self.app.push_screen(ImageScreen(self.rollout_id, self.turn.number, images))

    async def _tokens_of(self, turn: Turn) -> list[Row]:
        call = turn.call["call_id"]
        if call not in self._tokens:
            while len(self._tokens) >= _TOKEN_TURNS:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[call] = await self._of_call(read_turn_tokens, turn)
        return self._tokens[call]

    async def _of_call[T](self, read: Callable[[Path, str, int, str], T], turn: Turn) -> T:
        assert self.found is not None
        attempt: int = self.found.rollout["attempt"]
        reader = self.desk.reader
        return await reader.work(read, reader.store_root, self.rollout_id, attempt, turn.call["call_id"])

    def _log(self, full: bool) -> RenderableType:
        assert self.found is not None
        return rollout_log.render(self.desk.reader.store_root, self.found.rollout, full=full)

    def action_next_tab(self) -> None:
        self.query_one(Tabs).action_next_tab()

    def action_last_tab(self) -> None:
        self.query_one(Tabs).action_previous_tab()

    def action_full(self) -> None:
        self._full = not self._full
        self._show_turn()

    def action_find(self) -> None:
        pattern = self.filter_text.strip().lower()
        if not pattern:
            self.say("/ first: what to look for")
        elif not self.query_one(Pane).find(lambda line: pattern in line.lower()):
            grid = self.query_one(Grid)
            grid.move_cursor(row=(grid.cursor_row + 1) % max(grid.row_count, 1))

    def copyable(self) -> str:
        return self.query_one(Pane).text if self.query_one(Pane).has_focus else self.rollout_id

    async def action_attempt(self) -> None:
        """The attempt before, and round again."""
        if self.found is None:
            return
        attempt = self.found.rollout["attempt"]
        if attempt == 0 and self._attempt is None:
            self.say("it has one attempt")
            return
        self._attempt = attempt - 1 if attempt else None
        self.found = None
        self.look_again()

    # Played again

    def action_play(self) -> None:
        if self._timer is not None:
            self._stop_playing()
        elif self.found is not None and self.found.turns:
            self._shown_turns = 1
            self._next_step()

    def _next_step(self) -> None:
        assert self.found is not None
        assert self._shown_turns is not None
        turns, at = self.found.turns, self._shown_turns
        if at >= len(turns):
            self._stop_playing()
            return
        wait_s = min(_wait(turns[at - 1], turns[at]), _LONGEST_STEP_S) / self._speed
        self._timer = self.set_timer(wait_s, self._step)
        self._show_played()

    def _step(self) -> None:
        if self._shown_turns is not None:
            self._shown_turns += 1
            self._next_step()

    @work(group="played", exclusive=True)
    async def _show_played(self) -> None:
        await self._list_turns()
        grid = self.query_one(Grid)
        grid.move_cursor(row=max(grid.row_count - 1, 0))
        self._tell()

    def _stop_playing(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._shown_turns = None
        self._show_played()

    def action_faster(self) -> None:
        self._set_speed(self._speed * 2)

    def action_slower(self) -> None:
        self._set_speed(self._speed / 2)

    def _set_speed(self, speed: float) -> None:
        self._speed = min(max(speed, 0.25), 64.0)
        self._tell()
        if self._timer is None:
            self.say(f"plays at {self._speed:g}x")


def turn_row(turn: Turn) -> Row:
    """A turn as a row of the list."""
    call = turn.call
    return {
        "turn": turn.number,
        "what": _what(turn),
        "sampled": call["sampled"] if call["sampled"] is not None else call["completion_tokens"],
        "seconds": call["duration_s"],
        "call_id": call["call_id"],
        "record": turn,
    }


def _what(turn: Turn) -> str:
    """What the policy did, in a few words."""
    call = turn.call
    if call["error_class"]:
        return f"✗ {call['error_class']}"
    if call["state"] != "done":
        return f"… {call['state']}"
    marks = ("~ " if call["auxiliary"] else "") + ("" if call["break_reason"] in (None, "root", "append") else "⑂ ")
    for message in reversed(turn.messages):
        if message["role"] == "assistant":
            tools = [f"→ {one['name']} {one['arguments']}" for one in message["tool_calls"] or ()]
            return marks + visible("; ".join(tools) or message["text"] or "")[:80].replace("\n", " ")
    return marks + str(call["finish_reason"] or "")


def _texts(turn: Turn) -> Iterator[str]:
    for message in turn.messages:
        yield message["role"]
        yield message["text"] or ""
        yield message["reasoning"] or ""
        for call in message["tool_calls"] or ():
            yield f"{call['name']} {call['arguments']}"


def _wait(before: Turn, after: Turn) -> float:
    one, other = before.call["opened_at"], after.call["opened_at"]
    return max((other - one).total_seconds(), 0.0) if one and other else 0.0
