"""Whole ways through the app, with real runs behind them: nothing is made up but the policy of the second."""

from pathlib import Path

import pytest

from openforge.store.lists import list_rollouts, list_runs
from openforge_tui.jobs import outcome

SLEEPY = """
name = "sleepy"
version = "1"
dialects = ["chat"]
[run]
argv = ["bash", "-c", "echo asleep; sleep 120"]
"""
CONFIG = """
version = 1
[policy]
model = "m"
engine = "openai"
base_url = "http://127.0.0.1:9/v1"
[run]
mode = "record"
tasks = ["desk/count-lines"]
harnesses = ["sleepy"]
samples = 2
[sandbox]
isolation = "auto"
"""


def of_the_store(project: Path) -> list[dict]:
    store = project / ".openforge"
    return list_rollouts(store, list_runs(store)[0]["run_id"])


async def through(app, true) -> None:
    """Real work takes longer than a screen."""
    for _ in range(600):
        if true():
            return
        await app.pilot.pause(0.2)
    raise AssertionError(app.text())


@pytest.mark.contract
@pytest.mark.policy
@pytest.mark.usefixtures("starter_server")
async def test_start_a_run_follow_it_find_its_worst_rollout_by_sql_and_read_it(
    cache_dir, project, open_desk, monkeypatch
) -> None:
    monkeypatch.setenv("OPENFORGE_CACHE", str(cache_dir))
    async with open_desk(mode="runs") as app:
        await app.until_text("no runs yet: r starts one")
        await app.press("r")
        await app.until_text("openforge run")
        form = app.view
        for field, text in (("run-tasks", "desk/count-lines,desk/fix-mean"), ("run-samples", "3")):
            form.query_one(f"#{field}").value = text
        await app.until_text("6 rollouts")
        await app.pilot.press("ctrl+j")
        await through(app, lambda: "going on" in app.text())  # its rollouts opened by themselves
        await through(app, lambda: app.text().count(" done ") == 6)
        rollouts = of_the_store(project)
        worst = min(rollouts, key=lambda row: (row["reward"], row["rollout_id"]))
        await app.press("4")
        await app.press("f3")
        await app.until_text("Where reward was lost")
        await app.pilot.press("down", "enter")
        await app.until_text("ctrl+j runs")
        await app.pilot.press("f5")
        await app.until_text(" rows · ")
        results = app.view.results
        names = results.layout_shown.table.column_names
        shown = results.layout_shown.table.to_pylist()
        column = next(name for name in names if str(shown[0][name]).count(".") == 3)
        assert min(row["reward"] for row in rollouts) == next(
            row["reward"] for row in rollouts if row["rollout_id"] == shown[0][column]
        )
        results.focus()
        results.move_cursor(row=0, column=names.index(column))
        await app.pilot.press("enter")
        await app.until_text(f"reward {worst['reward']:g}")
        await app.until_text("turn 1 ─")
        while app.view.tab != "tokens":
            await app.press("right_square_bracket")
        await app.until_text("trained · weights")
        while app.view.tab != "outcome":
            await app.press("right_square_bracket")
        await app.until_text("sample ")


@pytest.mark.contract
async def test_cancel_one_rollout_then_its_run(project, open_desk) -> None:
    folder = project / "harness_images" / "sleepy"
    folder.mkdir(parents=True)
    (folder / "harness.toml").write_text(SLEEPY)
    (project / "openforge.toml").write_text(CONFIG)
    async with open_desk(mode="runs") as app:
        job = app.desk.start("run", ["run"])
        assert job is not None
        await through(app, lambda: " running " in app.text())
        await app.press("enter")
        await through(app, lambda: app.text().count(" running ") == 2)
        await app.press("ctrl+d")
        await app.until_text("It gets no reward")
        await app.pilot.press("y")
        await through(app, lambda: app.text().count(" running ") == 1)  # the job's line says "cancelled" before
        await app.press("escape", "ctrl+d")
        await app.until_text("what was graded stays")
        await app.pilot.press("y")
        await through(app, lambda: {row["state"] for row in of_the_store(project)} == {"cancelled"})
        await through(app, lambda: not app.desk.jobs.again(job).running)
    ended = app.desk.jobs.again(job)
    assert (ended.state, ended.exit_code) == ("stopped", 130)
    assert "was cancelled with 2 of 2 rollouts to go; what was graded stays" in outcome(ended).error
