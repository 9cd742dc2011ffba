import asyncio

import pytest

from openforge_tui.screens.rollouts import by_group, is_good
from tests.openforge_tui.screens.conftest import SIZES


async def to_rollouts(app) -> None:
    await app.press("enter")
    await app.until_text("rollouts")
    await app.settled()


@pytest.mark.parametrize("size", SIZES)
async def test_rollouts_are_listed(run, open_desk, snapshot, size) -> None:
    run.end()
    async with open_desk(size=size) as app:
        await to_rollouts(app)
        snapshot(app, "rollouts")
        await app.press("g")
        snapshot(app, "rollouts-by-task")


async def test_a_group_opens_into_its_members(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("g", "g")
        await app.until_text("by harness")
        await app.press("enter")
        await app.until_text("1 of 3 rollouts")
        assert "fix-mean.pi.0" in app.text()


async def test_what_never_began_does_not_lower_the_mean_of_calls(run, open_desk) -> None:
    run.state(f"{run.run_id}.fix-mean.react.7", "cancelled", detail="cancelled while queued")
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("g", "g")
        await app.until_text("by harness")
        known = [row for row in await app.desk.reader.rollouts(run.run_id) if row["harness"] == "react"]
        assert sorted(row["calls"] for row in known)[0] == 0
        while app.view.grid.current["group"] != "react":
            await app.press("down")
        assert app.view.grid.current["rollouts"] == len(known)
        assert app.view.grid.current["calls"] == sum(row["calls"] for row in known) / (len(known) - 1)


async def test_faults_only_hides_what_went_well_and_says_so(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("ctrl+z")
        await app.until_text("1 of 3 rollouts · faults only")
        assert "fix-mean.pi.0" in app.text()
        assert "fix-mean.react.0" not in app.text()


async def test_a_filter_for_a_column_that_is_not_there_names_the_columns(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("slash", *"-l colour=red")
        await app.until_text("there is no column 'colour'")
        assert "rollout_id" in app.text()


async def test_rollouts_appear_as_they_come_and_the_cursor_stays(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("down")
        chosen = app.view.grid.current["rollout_id"]
        run.rollout(task="a-first-one", harness="react", sample=0)
        await app.until_text("a-first-one.react.0")
        assert app.view.grid.current["rollout_id"] == chosen
        assert app.view.grid.cursor_row == 2


async def test_a_run_that_was_deleted_says_so_and_comes_back(run, open_desk) -> None:
    run.end()
    async with open_desk() as app:
        await to_rollouts(app)
        away = run.run_dir.with_name("away")
        run.run_dir.rename(away)
        await app.until_text("was it deleted?")
        away.rename(run.run_dir)
        await app.until(lambda: not app.view.header.trouble)


async def test_two_marked_rollouts_are_compared(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("v")
        await app.until(
            lambda: (
                "mark one with space, then v on the other" in str([note.message for note in app.desk._notifications])
            )
        )
        await app.press("space", "v")
        await app.until_text("compare")


async def test_what_has_ended_cannot_be_cancelled(run, open_desk) -> None:
    async with open_desk() as app:
        await to_rollouts(app)
        await app.press("ctrl+d")
        assert "nothing here goes on" in str([note.message for note in app.desk._notifications])


async def test_readonly_offers_no_change(run, open_desk) -> None:
    async with open_desk(readonly=True) as app:
        await to_rollouts(app)
        assert "read only" in app.text()
        enabled = {binding.id for _, binding, on, _ in app.view.active_bindings.values() if on}
        assert not {"rollouts.cancel", "rollouts.retry"} & enabled
        assert "rollouts.compare" in enabled


def test_groups_have_the_worst_reward_first_and_count_what_is_ours_apart() -> None:
    row = {"calls": 2, "completion_tokens": 10, "seconds": 1.0}
    rows = [
        {**row, "task": "a", "state": "done", "reward": 1.0},
        {**row, "task": "b", "state": "error", "reward": None},
        {**row, "task": "b", "state": "done", "reward": 0.5},
        {**row, "task": "c", "state": "running", "reward": None},
    ]
    found = by_group(rows, "task")
    assert [one["group"] for one in found] == ["b", "a", "c"]
    assert found[0] | {"rollouts": 2, "done": 1, "error": 1, "reward": 0.5} == found[0]
    assert found[2]["reward"] is None
    assert found[2]["going_on"] == 1


@pytest.mark.parametrize(
    ("state", "reward", "good"),
    [
        ("done", 1.0, True),
        ("done", 0.0, False),
        ("failed", 1.0, False),
        ("running", None, True),
        ("error", None, False),
    ],
)
def test_what_counts_as_a_fault(state, reward, good) -> None:
    assert is_good({"state": state, "reward": reward}) is good


async def test_what_is_asked_for_while_the_screen_loads_comes_though_it_is_paused(run, open_desk, monkeypatch) -> None:
    loading, go_on = asyncio.Event(), asyncio.Event()
    async with open_desk() as app:
        await app.press("enter", "p")
        rollouts = app.desk.reader.rollouts

        async def slowly(run_id: str) -> list[dict]:
            loading.set()
            await go_on.wait()
            return await rollouts(run_id)

        monkeypatch.setattr(app.desk.reader, "rollouts", slowly)
        app.view.look_again()
        await app.until(loading.is_set)
        app.view.action_faults()
        loading.clear()
        go_on.set()
        await app.until(loading.is_set)
        await app.until_text("faults only")
        assert "⏸ paused" in app.text()
