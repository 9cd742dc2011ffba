import pytest

from tests.openforge_tui.screens.conftest import SIZES


@pytest.mark.parametrize("size", SIZES)
async def test_runs_are_listed(run, open_desk, snapshot, size) -> None:
    run.end()
    async with open_desk(size=size) as app:
        snapshot(app, "runs")


async def test_a_filter_says_what_it_hides(run, open_desk) -> None:
    async with open_desk() as app:
        await app.press("slash", *"-l state=done", "enter")
        await app.until_text("0 of 1 runs")
        await app.press("escape")
        await app.until_text("1 runs")
