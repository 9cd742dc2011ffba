import pytest

from openforge_tui.screens.compare import CompareScreen
from tests.openforge_tui.screens.conftest import SIZES


@pytest.fixture
def two(run):
    """Two rollouts that part in their second turn; the second has one turn more."""
    ids = []
    for sample, texts in enumerate((("same", "this", "end"), ("same", "that", "end", "more"))):
        rollout = f"{run.run_id}.pair.react.{sample}"
        run.state(rollout, "running")
        for text in texts:
            run.call(rollout, text=text)
        run.state(rollout, "done")
        ids.append(rollout)
    return ids


@pytest.mark.parametrize("size", SIZES)
async def test_two_rollouts_side_by_side(run, two, open_desk, snapshot, size) -> None:
    run.end()
    async with open_desk(size=size) as app:
        await app.desk.push_screen(CompareScreen(*two))
        await app.until_text("2 of 4 turns differ")
        await app.press("n")
        await app.until(lambda: app.text().count("turn 2 ─") == 2)
        await app.settled()
        snapshot(app, "compare")
        await app.press("n")
        await app.until_text("it had ended")
