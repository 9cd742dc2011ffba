"""Mode 4: a question to the store in SQL, its rows below, and from a cell to what it names.

The query runs in a process of its own (openforge/store/sql.py) and in a thread here, so that it can be stopped and no
key waits for it. What is shown is limited and says so; what is written (f7) is not.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from rich.text import Text
from textual.widget import Widget
from textual.widgets import Static
from textual_fastdatatable import DataTable

from openforge.errors import OpenForgeError, UsageError
from openforge.ids import kind_of_id
from openforge.store import guard
from openforge.store.rows import SUFFIXES, check_dest
from openforge.store.saved import SAVED
from openforge.store.schema import VIEWS
from openforge.store.transcript import find_call
from openforge_tui.chart import chart_of
from openforge_tui.history import History
from openforge_tui.question import Answer, Question
from openforge_tui.screens.dialog import Choose, Reading, WriteTo
from openforge_tui.screens.sql_dialogs import ChartScreen, ColumnsScreen
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.results import Layout, Results, lay_out, whole_value
from openforge_tui.widgets.sql_editor import SqlEditor

_IDS = {"run_id": "run", "rollout_id": "rollout", "call_id": "call", "parent_call_id": "call"}
# What a hint says to who typed a command, and what it is here.
_HERE = {
    guard.HINT: "f8 lists what you can select from",
    "(--run, where rollout_id = …) or raise --timeout": "(f9, where rollout_id = …)",
    ", one run (--run) or one rollout, or allow more (--memory)": ", or of one run (f9) or rollout",
    "--to another place": "write to another place",
}
_TICK_S = 0.1
_SCROLLBAR = 2
_FIRST_LINE = 120  # characters of a query in the list of those before


class SqlScreen(View):
    SCOPE = "sql"
    DEFAULT_CLASSES = "-panes"
    MODE = "sql"
    FILTERS = False
    BINDINGS: ClassVar = bindings("sql")
    AUTO_FOCUS = "SqlEditor"
    DEFAULT_CSS = """
    SqlScreen #editor { height: 34%; min-height: 5; }
    SqlScreen #status { height: auto; max-height: 6; padding: 0 1; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._question: Question | None = None  # under way
        self._asked: Question | None = None  # whose rows are shown
        self._run: str | None = None  # the only one that is asked
        self._answer: Answer | None = None
        self._answered_at = 0.0

    def compose_body(self) -> Iterable[Widget]:
        yield SqlEditor(theme=self.app.theme, id="editor")
        yield Static(_say("views to ask · ctrl+j runs a query · f3 ready ones · f8 columns · f9 one run"), id="status")
        views = {"view": [view.name for view in VIEWS], "holds": [view.doc for view in VIEWS]}
        yield Results(lay_out(pa.table(views), self._room))

    def on_mount(self) -> None:
        super().on_mount()
        self._ticker = self.set_interval(_TICK_S, self._tick, pause=True)

    def on_unmount(self) -> None:
        self._stop()

    @property
    def editor(self) -> SqlEditor:
        return self.query_one(SqlEditor)

    @property
    def _room(self) -> int:
        """Cells beside each other that rows may take."""
        return self.app.size.width - _SCROLLBAR

    @property
    def results(self) -> Results:
        """The newest: the table before goes while this one is here already, and no key is for it any more."""
        return self.query(Results).last()

    async def load(self) -> None:
        self.header.crumbs = f"sql of {self._run or 'every run'}"
        self.header.note = "escape: to the rows" if self.editor.is_typed_in else "e: to the query"

    async def _load_once(self) -> None:
        await super()._load_once()
        if self._answer is not None:
            self.header.loaded_at = self._answered_at

    async def arrive(self, text: str) -> None:
        """Put this query and run it, as soon as there is an editor to put it into."""
        self.call_after_refresh(self._arrived, text)

    def _arrived(self, text: str) -> None:
        if not self.query(SqlEditor) or self.editor.text_input is None:
            self.call_after_refresh(self._arrived, text)
            return
        self.editor.put(visible(text))
        self.action_run()

    # Asking

    def action_run(self) -> None:
        self.editor.close_list()
        sql = (self.editor.selected_text or self.editor.text).strip()
        if sql:
            self._ask(sql)
        else:
            self._tell(_say("there is no query yet · f3 puts one that is made ready"))

    def action_refresh(self) -> None:
        """The same query again, over what the store holds now."""
        if self._asked is not None:
            self._ask(self._asked.sql)

    def _ask(self, sql: str) -> None:
        question = self._begin(sql, self._run)
        self.run_worker(self._asking(question), group="ask")

    def _begin(self, sql: str, run: str | None) -> Question:
        """One at a time: what ran before is stopped."""
        self._stop()
        self._question = question = Question(self.desk.loaded.store_root, sql, run)
        self._tick()
        self._ticker.resume()
        self.refresh_bindings()
        return question

    def _stop(self) -> None:
        if self._question is not None:
            self._question.stop()

    def _end(self, question: Question) -> bool:
        """Whether this was the one under way, not one that another took the place of."""
        if self._question is not question:
            return False
        self._question = None
        self._ticker.pause()
        self.refresh_bindings()
        return True

    async def _asking(self, question: Question) -> None:
        await self._remember(question.sql)
        try:
            answer = await asyncio.to_thread(question.ask)  # the reader's threads are for what is quick
            layout = await self.desk.reader.work(lay_out, answer.table, self._room)
        except OpenForgeError as error:
            if self._end(question):
                self._tell(self._failed(question, error))
            return
        if self._end(question):
            self._asked, self._answer, self._answered_at = question, answer, time.monotonic()
            await self._show(layout)
            self._tell(_say(_summary(answer)))

    async def _show(self, layout: Layout) -> None:
        """In a table of its own: the old one goes, with its rows."""
        before = self.results
        after = Results(layout)
        await self.mount(after, after=before)
        table = layout.table.slice(0, 1)
        ids = [at for at, name in enumerate(table.column_names) if name in _IDS and table.column(at).null_count == 0]
        if ids and table.num_rows and sum(layout.widths[: ids[0] + 1]) < self._room:
            after.move_cursor(column=ids[0])  # enter then opens what the row is about
        if before.has_focus:
            after.focus()
        await before.remove()

    async def _remember(self, sql: str) -> None:
        try:
            await self.desk.reader.work(self._history.add, sql)
        except OpenForgeError as error:
            self.desk.tell(error)

    @property
    def _history(self) -> History:
        return History(self.desk.desk_dir / "history.jsonl")

    def action_stop(self) -> None:
        self._stop()

    def _tick(self) -> None:
        if (question := self._question) is not None:
            what = "stopping" if question.stopping else f"{_count(question.rows)}" if question.rows else "running"
            self._tell(_say(f"{what} … {question.seconds:.1f} s · ctrl+k stops"))

    def _failed(self, question: Question, error: OpenForgeError) -> Text:
        below = " · the rows are those of the query before" if self._answer is not None else ""
        if question.stopping:
            return _say(f"stopped after {question.seconds:.1f} s · ctrl+j runs{below}")
        hint = error.hint
        for said, here in _HERE.items():
            hint = hint.replace(said, here)
        text = Text(visible(f"error: {error.summary}"), "bold red")
        return text.append(visible(f"\nnext: {hint}{below}" if hint else below), "not bold")

    def _tell(self, text: Text) -> None:
        self.query_one("#status", Static).update(text)

    # Going on from rows

    async def action_open(self) -> None:
        at, table = self.results.at, self.results.layout_shown.table
        if at is None:
            return
        row, column = at
        name, scalar = table.column_names[column], table.column(column)[row]
        value = _cell(table, row, name) or ""
        kind = (_IDS.get(name) or kind_of_id(value)) if value else None
        if kind == "run":
            await self.desk.open_run(value)
        elif kind == "rollout":
            await self.desk.open_rollout(value)
        elif kind == "call":
            await self._open_call(value, _cell(table, row, "rollout_id"), _cell(table, row, "run_id"))
        else:
            text = await self.desk.reader.work(whole_value, scalar)
            self.app.push_screen(Reading(f"{name}, row {row + 1:,}", text))

    async def _open_call(self, call_id: str, rollout_id: str | None, run_id: str | None) -> None:
        try:
            if rollout_id is None:
                rollout_id = await self.desk.reader.work(find_call, self.desk.loaded.store_root, call_id, run_id)
        except OpenForgeError as error:
            self.desk.tell(error)
        else:
            await self.desk.open_rollout(rollout_id, call_id=call_id)

    async def on_data_table_cell_selected(self, event: DataTable.CellSelected) -> None:
        event.stop()
        await self.action_open()

    def copyable(self) -> str:
        if self.results.at is None:
            return ""
        row, column = self.results.at
        return whole_value(self.results.layout_shown.table.column(column)[row])

    async def action_chart(self) -> None:
        if self._answer is None:
            return self.say("run a query of two columns first", error=True)
        try:
            chart = await self.desk.reader.work(chart_of, self._answer.table)
        except UsageError as error:
            return self.desk.tell(error)
        self.app.push_screen(ChartScreen(chart))

    def action_export(self) -> None:
        if self._asked is None:
            return self.say("run a query first: its rows are what is written", error=True)
        folder = self.desk.loaded.project_dir or Path.cwd()
        title = f"Write all rows of the query to ({', '.join(SUFFIXES)}):"
        screen = WriteTo(title, folder, placeholder="rows.parquet", check=check_dest)
        self.app.push_screen(screen, partial(self._export, self._asked))

    def _export(self, asked: Question, dest: Path | None) -> None:
        if dest is not None:
            self.run_worker(self._exporting(self._begin(asked.sql, asked.run), dest), group="ask")

    async def _exporting(self, question: Question, dest: Path) -> None:
        try:
            rows = await asyncio.to_thread(question.write, dest)
        except OpenForgeError as error:
            if self._end(question):
                self._tell(self._failed(question, error))
            return
        if self._end(question):
            self._tell(_say(f"wrote {_count(rows)} to {dest} · {question.seconds:.1f} s"))

    # Finding a query

    def action_saved(self) -> None:
        choices = [(saved.name, saved.name, saved.tells) for saved in SAVED.values()]
        of = f"of {self._run}" if self._run else "of every run; f9 asks one"
        self.app.push_screen(Choose(f"Questions made ready, {of}", choices), self._put_saved)

    def _put_saved(self, name: str | None) -> None:
        if name is not None:
            self._put(SAVED[name].sql, SAVED[name].tells)

    async def action_one_run(self) -> None:
        try:
            runs = await self.desk.reader.runs()
        except OpenForgeError as error:
            return self.desk.tell(error)
        choices = [("", "every run", "")] + [
            (row["run_id"], row["run_id"], f"{row['state']}, {_plural(row['rollouts'], 'rollout')}") for row in runs
        ]
        self.app.push_screen(Choose("Which run is asked", choices), self._ask_of)

    def _ask_of(self, run_id: str | None) -> None:
        if run_id is not None:
            self._run = run_id or None
            self.look_again()
            self.action_refresh()

    async def action_history(self) -> None:
        try:
            found = await self.desk.reader.work(self._history.newest)
        except OpenForgeError as error:
            return self.desk.tell(error)
        if not found:
            return self.say("nothing has been asked yet")
        choices = [
            (str(number), _one_line(past.sql), time.strftime("%d %b %H:%M", time.localtime(past.at)))
            for number, past in enumerate(found)
        ]
        self.app.push_screen(
            Choose("Asked before, the newest first", choices),
            lambda number: self._put(found[int(number)].sql, "asked before") if number is not None else None,
        )

    def _put(self, sql: str, what: str) -> None:
        self.editor.put(visible(sql))
        self.editor.focus()
        self._tell(_say(f"{what} · ctrl+j runs"))

    def action_columns(self) -> None:
        self.app.push_screen(ColumnsScreen(), self._insert)

    def _insert(self, name: str | None) -> None:
        if name is not None:
            self.editor.insert(name)
            self.editor.focus()

    # Between the query and its rows

    def action_edit(self) -> None:
        self.editor.focus()

    def action_back(self) -> None:
        self.results.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("open", "edit", "pause") and self.is_mounted:
            return action != "pause" and self.results.has_focus
        if action == "stop":
            return self._question is not None
        return super().check_action(action, parameters)


def _say(text: str) -> Text:
    return Text(visible(text), no_wrap=True, overflow="ellipsis")


def _summary(answer: Answer) -> str:
    shown, took = answer.table.num_rows, f"{answer.seconds:.2f} s"
    if not answer.cut:
        return f"{_count(shown)} · {took} · ctrl+j runs"
    why = "as much as is kept to look at" if answer.by_size else "the most that is shown"
    return f"{shown:,} of >{shown:,} rows, {why}; f7 writes all · {took}"


def _count(rows: int) -> str:
    return _plural(rows, "row")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _one_line(sql: str) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= _FIRST_LINE else line[:_FIRST_LINE] + "…"


def _cell(table: pa.Table, row: int, name: str) -> str | None:
    """The text in a row's column of that name; None when there is no such column."""
    if table.column_names.count(name) != 1 or not pa.types.is_string(table.schema.field(name).type):
        return None
    value: str | None = table.column(name)[row].as_py()
    return value
