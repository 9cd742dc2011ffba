import pytest

from tests.openforge_tui.screens.conftest import SIZES


@pytest.mark.parametrize("size", SIZES)
async def test_runs_are_listed(run, open_desk, snapshot, size) -> None:
    run.end()
    async with open_desk(size=size) as app:
        snapshot(app, "runs")


async def test_what_was_cancelled_is_counted(run, open_desk) -> None:
    run.state(f"{run.run_id}.fix-mean.react.7", "cancelled", detail="cancelled while queued")
    run.end()
    async with open_desk() as app:
        await app.press("slash", *"-l cancelled=1", "enter")
        await app.until_text("1 of 1 run")


async def test_a_run_is_held_and_goes_on_as_jobs(run, open_desk, monkeypatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("openforge_tui.app.Desk.start", lambda self, title, argv: started.append(list(argv)))
    async with open_desk() as app:
        await app.press("P")
        run.orchestrator.append("run.pause", paused=True)
        await app.until_text("paused")
        await app.press("P")
        assert started == [["pause", run.run_id], ["unpause", run.run_id]]


async def test_a_filter_says_what_it_hides(run, open_desk) -> None:
    async with open_desk() as app:
        await app.press("slash", *"-l state=done", "enter")
        await app.until_text("0 of 1 run")
        await app.press("escape")
        await app.until_text("  1 run")
