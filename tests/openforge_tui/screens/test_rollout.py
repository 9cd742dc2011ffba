import pytest

from tests.openforge_tui.cli.conftest import EVIL
from tests.openforge_tui.screens.conftest import SIZES


async def to_rollout(app, rollout: str = "") -> None:
    await app.desk.open_id(rollout or "latest.fix-mean.react.0")
    await app.until_text("turns")
    await app.settled()


async def to_tab(app, name: str, shows: str) -> None:
    while app.view.tab != name:
        await app.press("right_square_bracket")
    await app.until_text(shows)
    await app.settled()


@pytest.mark.parametrize("size", SIZES)
async def test_a_rollout_turn_by_turn(run, open_desk, snapshot, size) -> None:
    run.end()
    async with open_desk(size=size) as app:
        await to_rollout(app)
        await app.until_text("hello")
        snapshot(app, "rollout")
        await to_tab(app, "tokens", "30 trained")
        snapshot(app, "rollout-tokens")


async def test_each_tab_shows_its_part(run, open_desk) -> None:
    run.recorder.append(
        "egress",
        rollout_id=f"{run.run_id}.fix-mean.react.0",
        attempt=0,
        host="example.com",
        port=443,
        decision="refuse",
    )
    logs = run.run_dir / "logs"
    logs.mkdir()
    (logs / f"{run.run_id}.fix-mean.react.0.0.log").write_text("the harness said this\n")
    async with open_desk() as app:
        await to_rollout(app)
        await to_tab(app, "raw", '"content": "hello"')
        await to_tab(app, "outcome", "refused to reach example.com:443")
        await to_tab(app, "log", "the harness said this")
        await app.press("left_square_bracket")
        assert app.view.tab == "outcome"


async def test_the_next_turn_is_shown_when_the_cursor_moves(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollout(app)
        await app.press("down")
        await app.until_text("turn 2 ─")


async def test_a_call_is_gone_to(run, open_desk) -> None:
    call = run.truth.calls[f"{run.run_id}.rename-md.react.0"][3]
    async with open_desk() as app:
        await app.desk.open_rollout(f"{run.run_id}.rename-md.react.0", call_id=call)
        await app.until_text("turn 4 ─")


async def test_turns_come_while_it_runs(run, open_desk) -> None:
    rollout = f"{run.run_id}.slow.react.0"
    run.state(rollout, "running")
    first = run.call(rollout)
    async with open_desk() as app:
        await to_rollout(app, rollout)
        await app.until_text("1 turns")
        run.call(rollout, first, position=2)
        await app.until_text("2 turns")


async def test_it_is_played_again_as_it_happened(run, open_desk) -> None:
    run.end()
    async with open_desk() as app:
        await to_rollout(app, "latest.rename-md.react.0")
        await app.press("plus")
        await app.pilot.press("space")
        await app.until_text("▶ 2x · 2 of 5 turns")
        await app.until_text("▶ 2x · 4 of 5 turns")
        await app.until(lambda: "▶" not in app.text())
        assert " 5 turns" in app.text()


async def test_what_a_model_wrote_is_text(run, open_desk) -> None:
    texts = [EVIL, "\x1b[2J\x1b]52;c;x\x07", "漢字" * 40, "مرحبا \u202e", "a" * 1_000_000, "\x00\x80\ufffd", "[/]" * 99]
    rollout = f"{run.run_id}.evil.react.0"
    run.state(rollout, "running")
    for text in texts:
        run.call(rollout, text=text)
    run.state(rollout, "done")
    async with open_desk(size=(80, 24)) as app:
        await to_rollout(app, rollout)
        for number in range(1, len(texts) + 1):
            await app.until_text(f"turn {number} ─")
            shown = app.text()
            assert not [char for char in shown if (ord(char) < 32 and char != "\n") or char in "\x7f\u202e\x80"]
            await app.press("f", "f", "down")


async def test_the_filter_finds_a_turn_by_what_was_said(run, open_desk) -> None:
    rollout = f"{run.run_id}.talk.react.0"
    run.state(rollout, "running")
    for text in ("first", "needle", "third"):
        run.call(rollout, text=text)
    run.state(rollout, "done")
    async with open_desk() as app:
        await to_rollout(app, rollout)
        await app.press("slash", *"needle", "enter")
        await app.until_text("1 of 3 turns")
        await app.until_text("turn 2 ─")


async def test_other_attempts(run, open_desk) -> None:
    rollout = f"{run.run_id}.again.react.0"
    for attempt in (0, 1):
        run.state(rollout, "running", attempt=attempt)
        run.call(rollout, attempt=attempt)
        run.state(rollout, "error" if attempt == 0 else "done", attempt=attempt)
    async with open_desk() as app:
        await to_rollout(app, rollout)
        await app.until_text("attempt 1")
        await app.press("a")
        await app.until_text("error")
        assert "attempt 1" not in app.view.header.crumbs
        await app.press("a")
        await app.until_text("attempt 1")
