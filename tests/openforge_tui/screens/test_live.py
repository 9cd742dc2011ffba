from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openforge_tui import in_flight
from tests.openforge_tui.fake_orchestrator import FakeOrchestrator, call
from tests.openforge_tui.screens.conftest import SIZES

RUN = "r0000000aaa"
TASKS, HARNESSES, STAGES = ("fix-mean", "rename-md"), ("react", "pi", "codex"), ("reading", "waiting", "sampling")


@pytest.fixture
async def orchestrator(project: Path) -> AsyncIterator[FakeOrchestrator]:
    """A run with 24 calls in flight over two shards."""
    made = FakeOrchestrator(project / ".openforge", RUN, pid=1)
    made.calls = [
        call(
            number,
            f"{RUN}.{TASKS[number % 2]}.{HARNESSES[number % 3]}.{number}",
            shard=number % 2,
            age_s=round(0.5 + number * number * 0.31, 1),
            stage=STAGES[number % 3],
        )
        for number in range(24)
    ]
    await made.start()
    yield made
    await made.die()


@pytest.mark.parametrize("size", SIZES)
async def test_calls_in_flight_are_listed(orchestrator: Any, open_desk: Any, snapshot: Any, size: Any) -> None:
    async with open_desk(mode="live", size=size) as app:
        await app.until_text("24 calls in flight")
        snapshot(app, "live")
        await app.press("g")
        snapshot(app, "live-by-shard")


@pytest.mark.parametrize("size", SIZES)
async def test_when_nothing_runs_it_says_what_would_be_here(open_desk: Any, snapshot: Any, size: Any) -> None:
    async with open_desk(mode="live", size=size) as app:
        await app.until_text("Nothing is running.")
        snapshot(app, "live-none")


async def test_the_list_follows_and_pauses(orchestrator: Any, open_desk: Any) -> None:
    async with open_desk(mode="live") as app:
        await app.until_text("24 calls in flight")
        await app.press("j", "j")
        chosen = app.view.grid.current["call_id"]
        orchestrator.calls = [made for made in orchestrator.calls if made["call_id"] == chosen or made["age_s"] < 20]
        left = len(orchestrator.calls)
        await app.until_text(f"{left} calls in flight")
        assert app.view.grid.current["call_id"] == chosen
        await app.press("p")
        await app.until_text("paused")
        asked, orchestrator.calls = orchestrator.asked, []
        for _ in range(60):
            await app.pilot.pause(0.02)
        assert orchestrator.asked == asked
        assert f"{left} calls in flight" in app.text()
        await app.press("p")
        await app.until_text("0 calls in flight")


async def test_enter_opens_the_rollout_of_a_call(run: Any, project: Path, open_desk: Any) -> None:
    orchestrator = FakeOrchestrator(project / ".openforge", run.run_id)
    rollout_id = next(iter(run.truth.calls))
    orchestrator.calls = [{**call(1, rollout_id), "call_id": run.truth.calls[rollout_id][-1]}]
    await orchestrator.start()
    async with open_desk(mode="live") as app:
        await app.until_text("1 call in flight")
        await app.press("enter")
        await app.until(lambda: type(app.view).__name__ == "RolloutScreen")
        assert rollout_id.partition(".")[2].split(".")[0] in app.text()
        await app.press("escape")
        assert app.desk.current_mode == "live"
    await orchestrator.end()


async def test_from_a_group_to_its_calls(orchestrator: Any, open_desk: Any) -> None:
    async with open_desk(mode="live") as app:
        await app.press("g", "j", "enter")
        await app.until_text("12 of 24 calls")
        assert {row["shard"] for row in app.view.grid.shown.rows} == {1}
        app.view.action_back()
        await app.until_text("24 calls in flight")


async def test_an_orchestrator_that_hangs_dies_and_comes_back(
    orchestrator: Any, open_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PATIENCE_S", 0.2), ("_LATE_S", 0.3)):
        monkeypatch.setattr(in_flight, name, seconds)
    monkeypatch.setattr("openforge_tui.live_status.ANSWER_S", 0.5)
    trouble = f"run {RUN}: its orchestrator does not answer"
    async with open_desk(mode="live", size=(80, 24)) as app:
        await app.until_text("24 calls in flight")
        orchestrator.open.clear()
        await app.until_text(trouble)
        orchestrator.open.set()
        await app.until_text("24 calls in flight")
        assert trouble not in app.text()
        await orchestrator.die()
        await app.until_text(trouble)
        await orchestrator.start()
        await app.until_text("24 calls in flight")
        assert trouble not in app.text()


async def test_names_from_elsewhere_are_plain_text(orchestrator: Any, open_desk: Any) -> None:
    orchestrator.calls = [call(1, "[red]\x1b]0;x\x07", stage="[b]\x1b[31m")]
    async with open_desk(mode="live") as app:
        await app.until_text("1 call in flight")
        assert "[b]" in app.text()
        assert "\x1b" not in app.text()
