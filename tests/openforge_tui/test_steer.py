"""Ending what goes on, by asking a real orchestrator; and what is said when there is none."""

import asyncio
import json
import shutil

import pytest

from cluster.run_lock import RunLock
from openforge.errors import InfraError, UsageError
from openforge.store.lists import list_runs
from openforge_tui.steer import cancel, pause
from tests.cluster.conftest import desk, isolated, model  # noqa: F401
from tests.cluster.desk import until
from tests.cluster.test_orchestrator import ASK
from tests.openforge_tui.fake_orchestrator import FakeOrchestrator

SLEEP = "sleep 60\n"


@pytest.mark.contract
@pytest.mark.usefixtures("isolated")
async def test_a_rollout_is_ended_then_the_rest_of_the_run(desk) -> None:  # noqa: F811
    specs = [desk.spec(desk.task(), desk.harness(SLEEP), sample=number) for number in range(3)]
    async with desk.orchestrator() as orchestrator:
        rollouts = [await orchestrator.submit(spec) for spec in specs]
        await until(lambda: any(rollout.state == "running" for rollout in rollouts))
        (ended,) = await cancel(desk.store, [rollouts[0].id])
        assert (ended["rollout_id"], ended["state"]) == (rollouts[0].id, "cancelled")
        assert {one["rollout_id"] for one in await cancel(desk.store, ["latest"])} >= {rollouts[1].id, rollouts[2].id}
        assert {str(rollout.state) for rollout in rollouts} == {"cancelled"}
    assert [row["state"] for row in list_runs(desk.store)] == ["cancelled"]


@pytest.mark.contract
@pytest.mark.usefixtures("isolated")
async def test_a_held_run_ends_what_it_has_begun_and_begins_the_rest_when_it_goes_on(desk) -> None:  # noqa: F811
    def states() -> list[str]:
        return sorted(str(rollout.state) for rollout in rollouts)

    harness = desk.harness(ASK + "echo 42 > answer.txt; sleep 1\n")
    async with desk.orchestrator(concurrency=1) as orchestrator:
        rollouts = [await orchestrator.submit(desk.spec(desk.task(), harness, sample=n)) for n in range(3)]
        await until(lambda: "running" in states())
        for _ in range(2):  # twice is once
            [told] = await pause(desk.store, ["latest"])
            assert (told["run_id"], told["state"]) == (orchestrator.run_id, "paused")
        assert (await orchestrator.status())["state"] == "paused"
        await until(lambda: "running" not in states())
        await asyncio.sleep(0.5)
        assert states() == ["done", "queued", "queued"]
        assert [row["state"] for row in list_runs(desk.store)] == ["paused"]
        (ended,) = await cancel(desk.store, [rollouts[2].id])
        assert ended["state"] == "cancelled"
        assert (await pause(desk.store, ["latest"], on=False))[0]["state"] == "running"
        await until(lambda: states() == ["cancelled", "done", "done"])
    assert [record["paused"] for record in desk.records("run.pause")] == [True, False]
    assert [row["state"] for row in list_runs(desk.store)] == ["done"]


@pytest.mark.parametrize("ask", [cancel, pause])
async def test_a_run_that_is_not_under_way_says_so(store_root, ask) -> None:
    (store_root / "runs" / "r0000000aaa").mkdir()
    with pytest.raises(UsageError, match="r0000000aaa is not under way"):
        await ask(store_root, ["latest"])


async def test_a_run_that_is_just_starting_is_asked_again_later(store_root) -> None:
    (store_root / "runs" / "r0000000aaa").mkdir()
    lock = RunLock(store_root / "runs" / "r0000000aaa")
    lock.take()
    with pytest.raises(InfraError, match="r0000000aaa is just starting"):
        await pause(store_root, ["latest"])
    lock.drop()


@pytest.mark.parametrize("text", ["[]", "{}", "3", "[" * 100_000])
async def test_a_face_that_is_none_is_not_under_way(store_root, text: str) -> None:
    folder = store_root / "runs" / "r0000000aaa"
    folder.mkdir()
    (folder / "orchestrator.json").write_text(text)
    with pytest.raises(UsageError, match="r0000000aaa is not under way"):
        await cancel(store_root, ["latest"])


async def test_a_copied_store_does_not_end_the_run_that_goes_on_in_the_first(store_root, tmp_path) -> None:
    fake = FakeOrchestrator(store_root, "r0000000aaa")
    await fake.start()
    shutil.copytree(store_root, tmp_path / "copy")
    with pytest.raises(InfraError, match="in another folder, of which this is a copy"):
        await cancel(tmp_path / "copy", ["latest"])
    await fake.end()


async def test_an_orchestrator_that_is_gone_says_so(store_root) -> None:
    folder = store_root / "runs" / "r0000000aaa"
    folder.mkdir()
    (folder / "orchestrator.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "token": "x", "pid": 4}))
    with pytest.raises(InfraError, match=r"pid 4\) does not answer"):
        await cancel(store_root, ["r0000000aaa"])
