"""What holds on every screen: modes, the way back, the `:` line, the palette, help, jumping, copying, remapping."""

import gc

import pytest
from textual.color import Color

from openforge.config import load
from openforge.errors import ConfigError
from openforge_tui.actions import MODES
from openforge_tui.app import Opening, open_desk
from openforge_tui.screens.compare import CompareScreen
from openforge_tui.screens.dialog import Confirm
from openforge_tui.screens.jobs import JobsScreen
from openforge_tui.screens.rollout import RolloutScreen
from openforge_tui.screens.sql import SqlScreen
from tests.openforge_tui.screens.conftest import SIZES


def told(app) -> str:
    return " | ".join(note.message for note in app.desk._notifications)


async def test_digits_go_to_modes_and_minus_goes_back(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.press("enter")
        await app.press("3")
        assert app.desk.current_mode == "live"
        await app.press("minus")
        assert app.desk.current_mode == "runs"
        assert type(app.view).__name__ == "RolloutsScreen"  # what was open in it still is


@pytest.mark.parametrize("size", SIZES)
async def test_a_bar_says_which_pane_the_keys_go_to(run, open_desk, size, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    run.end()
    rollouts = [f"{run.run_id}.fix-mean.{harness}.0" for harness in ("react", "pi")]
    async with open_desk(size=size) as app:
        screens = {RolloutScreen(rollouts[0]): 3, CompareScreen(*rollouts): 3, JobsScreen(): 2, SqlScreen(): 2}
        for screen, panes in screens.items():
            await app.desk.push_screen(screen)
            await app.settled()
            await app.until(lambda screen=screen: screen.focused is not None)
            assert len(screen.focus_chain) == panes
            for pane in screen.focus_chain:
                pane.focus()
                await app.settled()
                bars = {(x, y) for y, row in enumerate(app.text().splitlines()) for x, c in enumerate(row) if c == "▌"}
                assert bars == {(pane.region.x, y) for y in range(pane.region.y, pane.region.bottom)}, app.text()


async def ready(app) -> list:
    """The views, once they have been made ahead."""
    await app.until(lambda: all(mode.noun in app.desk._screen_stacks for mode in MODES))
    return [app.desk.get_screen_stack(mode.noun)[0] for mode in MODES]


async def test_views_are_made_before_their_keys_and_read_nothing_until_then(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        views = await ready(app)
        assert [view.MODE for view in views if view.loads] == ["runs"]
        await app.press("3")
        assert app.view is views[2]
        assert [view.MODE for view in views if view.loads] == ["runs", "live"]


@pytest.mark.parametrize("made", range(1, 6))
async def test_the_app_may_be_left_while_its_views_are_made(run, open_desk, made) -> None:
    async with open_desk(mode="runs") as app:
        await app.until(lambda: len(app.desk._screen_stacks) > made)
    assert gc.isenabled()


async def test_a_first_visit_reads_no_stylesheet_anew(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await ready(app)
        read = app.desk.stylesheet.rules
        await app.press("3", "5", "6", "1", "2", "4")
        assert app.desk.stylesheet.rules is read


async def test_a_view_made_ahead_has_the_colours_chosen_since(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await ready(app)
        app.desk.theme = "openforge-light"
        await app.press("3")
        assert app.view.styles.background == Color.parse(app.desk.get_css_variables()["background"])


async def test_escape_closes_the_filter_first_then_the_screen(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.press("enter", "slash", *"pi", "enter")
        await app.until_text("1 of 3 rollouts")
        await app.press("escape")
        await app.until_text("3 rollouts")
        assert type(app.view).__name__ == "RolloutsScreen"
        await app.press("escape")
        assert type(app.view).__name__ == "RunsScreen"
        await app.press("escape")
        assert type(app.view).__name__ == "RunsScreen"


async def test_the_command_line_knows_views_actions_and_ids(run, open_desk) -> None:
    async with open_desk(mode="live") as app:
        await app.press("colon", *"runs", "enter")
        assert app.desk.current_mode == "runs"
        await app.press("colon", *"open latest.fix-mean.pi", "enter")
        await app.until_text("fix-mean.pi.0 · done")
        await app.press("colon", *"opne", "enter")
        await app.until(lambda: "did you mean :open?" in told(app))
        await app.press("colon", *"open r9", "enter")
        await app.until(lambda: "r9" in told(app))
        await app.press("colon", *"back", "enter")
        assert type(app.view).__name__ == "RunsScreen"
        await app.press("colon", *"filter nothing-like-it", "enter")
        await app.until_text("0 of 1 run")


async def test_the_palette_offers_the_screens_own_actions_as_noun_and_verb(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.pilot.press("ctrl+p")
        await app.until_text("runs: open")
        await app.pilot.press(*"runs: log")
        await app.pilot.pause(0.3)
        await app.pilot.press("enter")
        await app.until(lambda: type(app.desk.screen).__name__ == "RunLogScreen")


async def test_a_view_that_another_covers_reads_nothing_and_draws_nothing(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.desk.open_id("latest.fix-mean.pi")
        await app.until_text("turn 1 ─")
        below, view = app.desk.screen_stack[-2:]
        await app.settled()
        read = below.loads
        for _ in range(2):
            await app.settled()
            below.look_again()
        assert view.in_front
        assert (below.loads, below._compositor._dirty_regions) == (read, set())
        await app.desk.push_screen(Confirm("box?"))
        assert view.in_front
        await app.press("n", "escape")
        await app.until(lambda: below.loads > read)


@pytest.mark.parametrize("size", SIZES)
async def test_help_says_what_the_keys_of_this_screen_do(run, open_desk, snapshot, size) -> None:
    async with open_desk(mode="runs", size=size) as app:
        await app.press("question_mark")
        await app.until_text("The rollouts of this run.")
        snapshot(app, "help-runs")


async def test_jumping_needs_no_mouse(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.desk.open_id("latest.fix-mean.pi")
        await app.until_text("turn 1 ─")
        letters = "abc"[: len(app.view.focus_chain)]
        await app.press("ctrl+o", letters[-1])
        assert app.view.focused is app.view.focus_chain[-1]


async def test_copying_says_by_what_means(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.press("c")
        assert f"copied {run.run_id} by" in told(app)


async def test_keys_can_be_remapped_in_the_configuration(run, open_desk, project) -> None:
    (project / "openforge.toml").write_text('version = 1\n[app.keys]\n"runs.open" = "z"\n')
    async with open_desk(mode="runs") as app:
        await app.press("z")
        assert type(app.view).__name__ == "RolloutsScreen"


def test_a_key_for_an_action_that_is_none_is_named(project) -> None:
    (project / "openforge.toml").write_text('version = 1\n[app.keys]\n"runs.fly" = "z"\n')
    with pytest.raises(ConfigError, match=r"runs\.fly"):
        open_desk(Opening(load(project)))


async def test_compact_takes_the_lines_away(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.desk.open_id("latest.fix-mean.pi")
        await app.until_text("outcome")
        await app.press("f2")
        assert "outcome" not in app.text()


async def test_a_fault_of_ours_is_shown_and_kept(run, open_desk, monkeypatch) -> None:
    async with open_desk(mode="runs") as app:

        async def broken() -> None:
            raise ZeroDivisionError("ours")

        monkeypatch.setattr(app.desk.reader, "runs", broken)
        await app.until_text("ZeroDivisionError: ours · written to")
        assert "ZeroDivisionError" in (app.desk.desk_dir / "faults.log").read_text()


async def test_an_action_that_cannot_read_is_told_and_ends_nothing(run, open_desk, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "harnesses")

    async with open_desk(mode="overview") as app:
        monkeypatch.setattr("openforge_tui.screens.overview._harnesses", refuse)
        await app.desk.run_action("screen.install")
        await app.until(lambda: "harnesses: Permission denied" in str([n.message for n in app.desk._notifications]))


async def test_the_store_may_go_and_come_back(run, open_desk, project) -> None:
    run.end()
    store = project / ".openforge"
    async with open_desk(mode="runs") as app:
        await app.until_text("  1 run")
        store.rename(project / "away")
        await app.until_text("is gone")
        (project / "away").rename(store)
        await app.until_text("  1 run")


async def test_age_is_shown_and_pausing_stops_it(run, open_desk) -> None:
    async with open_desk(mode="runs") as app:
        await app.press("p")
        assert "⏸ paused" in app.text()
        run.rollout(task="later", sample=7)
        await app.until_text("paused, as of 2 s ago")
        assert "   3   " in app.text()
        await app.press("p")
        await app.until_text("   4   ")
