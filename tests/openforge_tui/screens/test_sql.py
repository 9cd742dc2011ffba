import asyncio
import time

import pyarrow.parquet as pq
import pytest
from synthetic import SyntheticRun
from textual.events import Paste

from openforge.ids import new_call_id
from openforge.store.saved import SAVED
from openforge_tui.history import History
from openforge_tui.question import Question
from openforge_tui.screens.rollout import RolloutScreen
from openforge_tui.screens.rollouts import RolloutsScreen
from openforge_tui.screens.sql_dialogs import ChartScreen
from openforge_tui.widgets.results import Results
from tests.openforge_tui.screens.conftest import SIZES, Opened

pytestmark = pytest.mark.contract
SLOW = "SELECT count(*) FROM range(100000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"


async def ask(app: Opened, sql: str) -> None:
    """Put a query, run it, wait for what comes of it."""
    app.view.editor.put(sql)
    await app.press("ctrl+j")
    await app.until(lambda: app.view._question is None and len(app.view.query(Results)) == 1)
    await app.settled()


def status(app: Opened) -> str:
    return str(app.view.query_one("#status").content)


@pytest.mark.parametrize("size", SIZES)
async def test_the_views_stand_there_at_first(run, open_desk, snapshot, size) -> None:
    async with open_desk("sql", size) as app:
        snapshot(app, "sql")


@pytest.mark.parametrize("size", SIZES)
async def test_a_query_and_its_rows(run, open_desk, snapshot, size, monkeypatch) -> None:
    monkeypatch.setattr(Question, "seconds", 0.12)
    async with open_desk("sql", size) as app:
        await ask(app, "SELECT rollout_id, reward, calls, list(state) AS states\nFROM rollouts GROUP BY ALL ORDER BY 1")
        snapshot(app, "sql-rows")
        await ask(app, "SELECT rollout_id\nFROM rollouts\nWHERE rewrd > 0")
        snapshot(app, "sql-error")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("key", "name"), [("f3", "sql-saved"), ("f8", "sql-columns")])
async def test_what_can_be_chosen(run, open_desk, snapshot, size, key: str, name: str) -> None:
    async with open_desk("sql", size) as app:
        await app.press(key)
        if key == "f8":
            await app.press("down", "space")
        snapshot(app, name)


async def test_typing_is_text_and_escape_leads_to_the_rows(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await app.press(*"select 1 q", "escape", "escape")
        assert app.view.editor.text == "select 1 q"
        assert app.view.results.has_focus
        await app.press("e", "end", "left", "backspace", *"2")
        assert app.view.editor.text == "select 12q"
        await app.press("escape", "escape", "2")
        assert app.desk.current_mode == "runs"


async def test_names_are_completed_while_one_types(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await app.press(*"select rew")
        await app.until_text("reward  column of rollouts")
        await app.press("tab", *" from roll")
        await app.until_text("rollouts  One row a rollout")
        await app.press("tab")
        assert app.view.editor.text == "select reward from rollouts"
        await app.press(*" where rollouts.ha")
        await app.until_text("rollouts.harness ")
        await app.press("down", "enter")
        assert app.view.editor.text.endswith("rollouts.harness_version")


async def test_the_selection_alone_is_run(run, open_desk) -> None:
    async with open_desk("sql") as app:
        app.view.editor.put("select 1 as one\nselect 2 as two")
        await app.press("shift+home", "f5")
        await app.until(lambda: app.view.results.layout_shown.table.column_names == ["two"])


async def test_one_run_only_is_asked_until_every_run_is_again(project, run, open_desk) -> None:
    other = SyntheticRun(project / ".openforge", "r0000000bbb")
    other.rollout(task="sort-names", harness="codex", reward=0.0)
    other.close()

    def asked(app: Opened) -> set[str]:
        return set(app.view.results.layout_shown.table.column("harness").to_pylist())

    async with open_desk("sql", (80, 24)) as app:
        await ask(app, SAVED["harnesses"].sql)
        assert asked(app) == {"codex", "pi", "react"}
        await app.press("f9")
        await app.until_text("r0000000aaa  running, 3 rollouts")
        await app.press("down", "enter")
        await app.until(lambda: asked(app) == {"codex"})
        assert "sql of r0000000bbb" in app.text()
        await app.press("f3")
        await app.until_text("Questions made ready, of r0000000bbb")
        await app.press("escape", "f7")
        app.desk.screen.query_one("Input").value = str(project / "rows.csv")
        await app.press("enter")
        await app.until(lambda: "wrote 1 row" in status(app))
        await app.press("f9", "enter")
        await app.until(lambda: asked(app) == {"codex", "pi", "react"})
        assert "sql of every run" in app.text()


async def test_nothing_to_run_is_said(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await app.press("f5")
        assert "there is no query yet" in status(app)


async def test_a_wrong_query_is_told_with_its_place_and_the_rows_before_stay(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await ask(app, "select 7 as seven")
        await ask(app, "select *\nfrom rolouts")
        assert "did you mean rollouts?" in status(app)
        assert "f8 lists what you can select from" in status(app)
        assert "LINE 2: from rolouts\n             ^" in status(app)
        assert "the rows are those of the query before" in status(app)
        assert app.view.results.layout_shown.table.column_names == ["seven"]
        await ask(app, "drop table calls")
        assert "only statements that read" in status(app)


async def test_a_query_shows_that_it_runs_and_can_be_stopped(run, open_desk) -> None:
    async with open_desk("sql") as app:
        app.view.editor.put(SLOW)
        await app.press("ctrl+j")
        await app.until_text("running …")
        await app.until(lambda: app.view._question is not None and app.view._question._asked._process is not None)
        assert "stop" in app.text().splitlines()[-1]
        began = time.monotonic()
        await app.press("ctrl+k")
        await app.until(lambda: app.view._question is None)
        assert time.monotonic() - began < 5
        assert status(app).startswith("stopped after")


async def test_a_second_query_stops_the_first(run, open_desk) -> None:
    async with open_desk("sql") as app:
        app.view.editor.put(SLOW)
        await app.press("ctrl+j")
        first = app.view._question
        await app.until(lambda: first._asked._process is not None)
        await ask(app, "select 2 as second")
        await app.until(first._ended.is_set)
        assert "second" in app.text()
        assert status(app).startswith("1 row ")


async def test_quitting_ends_the_querys_process(run, open_desk) -> None:
    async with open_desk("sql") as app:
        app.view.editor.put(SLOW)
        await app.press("ctrl+j")
        question = app.view._question
        await app.until(lambda: question._asked._process is not None)
        process = question._asked._process
        assert process.poll() is None
    await asyncio.to_thread(question._ended.wait, 10)
    assert process.poll() is not None


async def test_rows_beyond_the_most_are_said_to_be_there(run, open_desk, monkeypatch) -> None:
    monkeypatch.setattr("openforge_tui.question.MAX_ROWS", 500)
    async with open_desk("sql") as app:
        await ask(app, "select * from range(600)")
        assert status(app).startswith("500 of >500 rows, the most that is shown; f7 writes all")


async def test_text_of_a_model_stays_text(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await ask(
            app, """select chr(27) || '[31m[bold]x[/] ' || chr(8238) || chr(10) || 'b' as "[/a]", chr(155) as c"""
        )
        text = app.text()
        assert "␛[31m[bold]x[/] \\u202e⏎b" in text
        assert "[/a]" in text
        assert not {"\x1b", "\u202e", "\x9b"} & set(text)
        await app.press("escape", "enter")
        assert "[/a], row 1" in app.text()
        assert "\x1b" not in app.text()


async def test_enter_opens_what_a_cell_names(run, open_desk) -> None:
    rollout, call = next((rollout, calls[1]) for rollout, calls in run.truth.calls.items())
    async with open_desk("sql") as app:
        await ask(app, f"select run_id, rollout_id, call_id from calls where call_id = '{call}'")
        await app.press("escape", "enter")
        assert isinstance(app.view, RolloutsScreen)
        assert app.view.run_id == run.run_id
        await app.press("4", "right", "enter")
        assert isinstance(app.view, RolloutScreen)
        assert app.view.rollout_id == rollout
        await app.press("4", "right", "enter")
        await app.until_text(f"{call} · chat")
        await app.press("4")
        await ask(app, f"select call_id as parent_call_id from calls where call_id = '{call}'")
        await app.press("enter")  # its rollout must be looked up
        await app.until_text(f"{call} · chat")


async def test_who_goes_to_the_rows_as_they_change_comes_to_the_new_ones(run, open_desk, monkeypatch) -> None:
    gone, remove = asyncio.Event(), Results.remove

    async def slowly(results: Results) -> None:
        await gone.wait()
        await remove(results)

    async with open_desk("sql") as app:
        monkeypatch.setattr(Results, "remove", slowly)
        app.view.editor.put("select run_id from runs")
        await app.press("ctrl+j")
        await app.until(lambda: len(app.view.query(Results)) == 2)
        await app.press("escape")
        gone.set()
        await app.until(lambda: len(app.view.query(Results)) == 1)
        assert app.view.results.has_focus
        await app.press("enter")
        await app.until(lambda: isinstance(app.view, RolloutsScreen))


async def test_escape_comes_back_to_the_rows_that_a_rollout_was_opened_from(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await ask(app, "select run_id, rollout_id from rollouts")
        await app.press("escape", "enter", "enter")
        assert isinstance(app.view, RolloutScreen)
        await app.press("escape")
        assert isinstance(app.view, RolloutsScreen)  # it was opened from there
        await app.press("escape")
        assert app.desk.current_mode == "sql"
        await app.press("enter", "1", "2")  # whoever left by hand goes the way of that view
        assert isinstance(app.view, RolloutsScreen)
        await app.press("escape")
        assert app.desk.current_mode == "runs"


async def test_an_id_is_told_by_its_form_and_one_that_names_nothing_is_said(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await ask(app, "select 'r06p3bn2fbdm.fix-mean.react.0' as example")
        await app.press("escape", "enter")
        assert isinstance(app.view, RolloutScreen)
        assert app.view.rollout_id == "r06p3bn2fbdm.fix-mean.react.0"
        await app.press("4")
        await ask(app, f"select '{new_call_id()}' as call_id")
        await app.press("enter")
        await app.until(lambda: any("no call is called" in note.message for note in app.desk._notifications))


async def test_enter_on_a_fresh_result_opens_what_its_first_row_is_about(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await ask(app, "select reward, rollout_id from rollouts order by reward, rollout_id")
        await app.press("escape", "enter")
        assert isinstance(app.view, RolloutScreen)
        assert app.view.rollout_id == f"{run.run_id}.fix-mean.pi.0"


async def test_enter_on_another_cell_shows_all_of_it(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await ask(app, "select repeat('word ', 100) || 'the end' as long, null as run_id, {'a': [1, 2]} as nested")
        await app.press("escape", "enter")
        await app.until_text("the end")
        await app.press("escape", "right", "enter")
        await app.until_text("run_id, row 1")
        await app.press("escape", "right", "enter")
        await app.until_text('"a": [')
        await app.press("escape", "c")
        assert any(note.message.startswith("copied") for note in app.desk._notifications)


async def test_what_is_pasted_is_plain_text(run, open_desk) -> None:
    async with open_desk("sql") as app:
        app.view.editor.text_input.post_message(Paste("select\r\n1 \x1b[31m"))
        await app.pilot.pause()
        assert app.view.editor.text == "select\n1 ␛[31m"


async def test_a_ready_question_goes_into_the_editor_and_runs(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await app.press("f3", "enter")
        assert app.view.editor.text.startswith("SELECT harness, count(*) AS rollouts")
        assert "Success by harness" in status(app)
        await app.press("f5")
        await app.until_text("2 rows")
        await app.until_text("react")


async def test_what_was_asked_comes_back_also_from_another_app(run, open_desk, project) -> None:
    async with open_desk("sql") as app:
        await app.press("f4")
        assert any("nothing has been asked" in note.message for note in app.desk._notifications)
        await ask(app, "select 1 as one")
        History(project / ".openforge" / "desk" / "history.jsonl").add("select 2\nas two \x1b[31m")
        app.view.editor.put("")
        await app.press("f4")
        assert "select 2 as two ␛[31m" in app.text()
        await app.press("down", "enter")
        assert app.view.editor.text == "select 1 as one"


async def test_all_rows_are_written_not_only_those_that_are_shown(run, open_desk, project, monkeypatch) -> None:
    monkeypatch.setattr("openforge_tui.question.MAX_ROWS", 10)
    async with open_desk("sql") as app:
        await app.press("f7")
        assert any("run a query first" in note.message for note in app.desk._notifications)
        await ask(app, "select range as n from range(20000)")
        await app.press("f7", *"out.parquet", "enter")
        await app.until(lambda: "wrote 20,000 rows to" in status(app))
        assert pq.read_metadata(project / "out.parquet").num_rows == 20000
        await app.press("f7", *"out.xls", "enter")
        await app.until_text("end it in .parquet, .csv, .jsonl")
        await app.press("escape", "f7", *"out.parquet", "enter")
        await app.until_text("is there already")
        await app.press("escape")
        assert pq.read_metadata(project / "out.parquet").num_rows == 20000
        await ask(app, "select 1 as n")
        await app.press("f7", *"out.parquet", "enter", "enter")
        await app.until(lambda: "wrote 1 row " in status(app))
        await app.press("f7", *"/proc/nowhere/out.csv", "enter")
        await app.until(lambda: "cannot be written" in status(app))


async def test_two_columns_are_drawn_and_others_say_why_not(run, open_desk) -> None:
    async with open_desk("sql", (80, 24)) as app:
        await ask(app, "select task, avg(reward) as reward from rollouts group by all order by 1")
        await app.press("f6")
        await app.until_text("reward by task")
        await app.until_text("fix-mean █")
        await app.press("escape")
        await ask(app, "select range as x, range * 2 as y from range(10)")
        await app.press("f6")
        await app.until_text("y by x")
        await app.press("escape")
        await ask(app, "select 1 as one")
        await app.press("f6")
        assert not isinstance(app.view, ChartScreen)
        assert any("a chart needs two columns, this has 1" in note.message for note in app.desk._notifications)


async def test_a_name_from_the_list_goes_to_where_one_types(run, open_desk) -> None:
    async with open_desk("sql") as app:
        await app.press(*"select 1 from ", "f8", "down", "enter")
        assert app.view.editor.text == "select 1 from rollouts"


async def test_the_command_line_asks(run, open_desk) -> None:
    async with open_desk("runs") as app:
        await app.press("colon", *"sql select 42 as answer", "enter")
        await app.until_text("answer")
        await app.until(lambda: status(app).startswith("1 row "))
        assert app.view.editor.text == "select 42 as answer"


async def test_a_million_rows_are_looked_through_without_waiting(run, open_desk) -> None:
    async with open_desk("sql") as app:
        sql = "select range as n, 'r0000000aaa.t.react.' || range as rollout_id, [range] as l from range(1000000)"
        began = time.monotonic()
        await ask(app, sql)
        assert time.monotonic() - began < 20
        assert status(app).startswith("1,000,000 rows")
        app.view.results.focus()
        began = time.monotonic()
        await app.pilot.press("end", *["pageup"] * 10, *["up"] * 10)
        assert time.monotonic() - began < 10
        row = app.view.results.cursor_row
        assert 990_000 < row < 999_800
        assert f"r0000000aaa.t.react.{row}" in app.text()
