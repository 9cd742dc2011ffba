"""Whole rollouts: real sandboxes, the real recorder, a scripted model. Deaths, interruptions, leftovers."""

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from desk import Desk, until
from model_server import ModelServer

from cluster.orchestrator import Orchestrator
from cluster.rollout import Rollout
from cluster.runtimes.folders import remove_tree
from cluster.runtimes.process import ProcessRuntime
from openforge.errors import UsageError
from openforge.harness import load_harness
from openforge.journal.records import JournalError
from openforge.task import read_task

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("isolated")]

BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ASK = f"curl -s --noproxy '*' -m 10 $URL/chat/completions -H 'content-type: application/json' -d '{BODY}'\n"


def answers(session: str, n: int) -> str | None:
    return ["echo 42 > answer.txt", None][n]


async def run_one(desk: Desk, script: str | None = None, **options: object) -> Rollout:
    test, setup = str(options.pop("test", "")), str(options.pop("setup", ""))
    task = desk.task(**{key: text for key, text in (("test", test), ("setup", setup)) if text})
    async with desk.orchestrator(**options) as orchestrator:
        harness = desk.harness(script) if script is not None else None
        [rollout] = await orchestrator.run_all([desk.spec(task, harness)])
    return rollout


def outcome(rollout: Rollout) -> tuple[str, str | None, float | None]:
    return str(rollout.state), rollout.result.error_class, rollout.reward


async def test_a_rollout_that_works_is_done_graded_and_told_in_the_journal(desk: Desk, model: ModelServer) -> None:
    model.commands = answers
    rollout = await run_one(desk)
    assert outcome(rollout) == ("done", None, 1.0)
    states = desk.records("rollout.state")
    assert [record["state"] for record in states] == ["queued", "starting", "running", "grading", "done"]
    assert states[0]["harness_hash"] == rollout.spec.harness.content_hash()
    assert not states[2].get("detail")  # walls are nothing to remark on; their absence is
    assert [record["reward"] for record in desk.records("grade")] == [1.0]
    assert len(desk.records("call.close")) == 2
    assert [record["kind"] for record in desk.records("run.start", "run.end")] == ["run.start", "run.end"]
    assert desk.records("run.end")[0]["state"] == "done"


async def test_a_setup_that_fails_is_ours_and_tried_again(desk: Desk) -> None:
    rollout = await run_one(desk, setup="exit 9\n", retries=1)
    assert outcome(rollout) == ("error", "sandbox", None)
    assert [record["attempt"] for record in desk.records("rollout.state") if record["state"] == "error"] == [0, 1]


@pytest.mark.parametrize("plant", ["mkdir tools; ln -s {host} tools/s", "ln -s {host} .agents", "ln -s {host} ~/.cfg"])
async def test_links_that_setup_plants_neither_show_the_host_nor_get_it_written(
    desk: Desk, tmp_path: Path, plant: str
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "secret").touch()
    task = desk.task(setup=f"{plant.format(host=host)}; mkdir -p tools/s; true\n")
    (task.root / "task.toml").write_text('[openforge]\nsetup = "environment/setup.sh"\nskills = ["tools/s"]\n')
    manifest = desk.harness(ASK + "ls -R . ~").root / "harness.toml"
    manifest.write_text(manifest.read_text() + '[[files]]\npath = ".cfg/settings"\ntemplate = "run.sh"\n')
    harness = load_harness("odd", [manifest.parent.parent])
    async with desk.orchestrator() as orchestrator:
        [rollout] = await orchestrator.run_all([desk.spec(read_task(task.root), harness)])
    assert outcome(rollout) == ("error", "sandbox", None)
    assert "leads through a link" in rollout.result.detail
    assert os.listdir(host) == ["secret"]


async def test_the_same_seed_gives_every_harness_the_same_start_files(desk: Desk) -> None:
    script = ASK + "cat start.txt; pwd; echo $HOME"
    async with desk.orchestrator() as orchestrator:
        harnesses = [desk.harness(script, name) for name in ("one", "two")]
        await orchestrator.run_all([desk.spec(harness=harness, sample=5) for harness in harnesses])
    logs = {path.read_text() for path in (desk.run_dir / "logs").glob("*.5.0.log")}
    assert len(logs) == 1
    assert "seed 5" in logs.pop()


async def test_cancelling_one_ends_it_at_once_and_leaves_the_others(desk: Desk) -> None:
    harness = desk.harness(ASK + "sleep 1321.5 & sleep 1321.5")
    async with desk.orchestrator(concurrency=2) as orchestrator:
        slow = await orchestrator.submit(desk.spec(harness=harness))
        await until(lambda: len(sleeping("1321.5")) == 2)
        other = await orchestrator.submit(desk.spec(sample=1))
        assert (await orchestrator.cancel(slow.id)).state == "cancelled"
        assert sleeping("1321.5") == []
        await asyncio.wait_for(other.finished.wait(), 20)
        assert (await orchestrator.cancel(other.id)).state == "done"  # first end wins
    assert outcome(other)[0] == "done"


async def test_all_can_be_cancelled_queued_or_running(desk: Desk) -> None:
    harness = desk.harness(ASK + "sleep 1324.5")
    async with desk.orchestrator(concurrency=2) as orchestrator:
        for n in range(3):
            await orchestrator.submit(desk.spec(harness=harness, sample=n))
        await until(lambda: len(sleeping("1324.5")) == 2)
        ended = await orchestrator.cancel_all()
        assert [(rollout.spec.sample, rollout.state) for rollout in ended] == [(n, "cancelled") for n in range(3)]
        assert sleeping("1324.5") == []
        assert all(rollout.finished.is_set() for rollout in orchestrator.rollouts.values())
        assert await orchestrator.cancel_all() == []


async def test_a_drained_run_ends_what_it_has_begun_and_takes_nothing_more(desk: Desk, model: ModelServer) -> None:
    model.commands = answers
    harness = desk.harness(ASK + "echo 42 > answer.txt; sleep 1")
    async with desk.orchestrator(concurrency=2) as orchestrator:
        asked = [await orchestrator.submit(desk.spec(harness=harness, sample=n)) for n in range(5)]
        await until(lambda: [rollout.state for rollout in asked].count("running") == 2)
        going_on = await orchestrator.drain()
        assert [rollout.id for rollout in going_on] == [rollout.id for rollout in asked[:2]]
        with pytest.raises(UsageError, match="drained"):
            await orchestrator.submit(desk.spec(harness=harness, sample=9))
        await asyncio.gather(*(rollout.finished.wait() for rollout in asked))
    assert [str(rollout.state) for rollout in asked] == ["done", "done", "cancelled", "cancelled", "cancelled"]


async def test_a_harness_with_a_cap_of_its_own_leaves_room_for_the_others(desk: Desk) -> None:
    most: Counter[str] = Counter()

    def on_event(rollout: Rollout) -> None:
        live = [r for r in orchestrator.rollouts.values() if r.state in ("starting", "running", "grading")]
        for name, count in Counter(r.spec.harness.name for r in live).items():
            most[name] = max(most[name], count)

    options = {"concurrency": 4, "harnesses": ("one", "two"), "harness_concurrency": {"one": 1}}
    async with desk.orchestrator(on_event=on_event, **options) as orchestrator:
        harnesses = [desk.harness(ASK + "sleep 0.3", name) for name in ("one", "two")]
        specs = [desk.spec(harness=harness, sample=n) for harness in harnesses for n in range(4)]
        ended = await orchestrator.run_all(specs)
    assert {str(rollout.state) for rollout in ended} == {"done"}
    assert most["one"] == 1
    assert most["two"] >= 2


async def test_a_rollout_that_waits_for_its_next_attempt_can_be_cancelled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.orchestrator.random.uniform", lambda low, high: 1000.0)
    async with desk.orchestrator(retries=3) as orchestrator:
        rollout = await orchestrator.submit(desk.spec(desk.task(setup="exit 9\n")))
        await until(lambda: rollout.state == "error")
        assert not rollout.finished.is_set()
        await asyncio.wait_for(orchestrator.cancel(rollout.id), 10)
        assert rollout.finished.is_set()
    assert outcome(rollout) == ("error", "sandbox", None)


async def test_a_rollout_that_was_cancelled_is_run_when_it_is_asked_for_again(desk: Desk, model: ModelServer) -> None:
    model.commands = answers
    async with desk.orchestrator() as orchestrator:
        first = await orchestrator.submit(desk.spec())
        await orchestrator.cancel(first.id)  # before its worker has begun
        assert first.finished.is_set()
        [again] = await orchestrator.run_all([desk.spec()])
    assert (again.id, again.attempt) == (first.id, 1)
    assert outcome(again) == ("done", None, 1.0)
    assert outcome(first)[0] == "cancelled"


async def test_k04_interrupting_the_run_leaves_no_process_and_an_end_in_the_journal(desk: Desk) -> None:
    harness = desk.harness(ASK + "setsid sleep 1322.5 & sleep 1322.5")
    children = set(child_pids())

    async def run() -> None:
        async with desk.orchestrator(concurrency=2) as orchestrator:
            await orchestrator.run_all([desk.spec(harness=harness, sample=n) for n in range(3)])

    task = asyncio.create_task(run())
    await until(lambda: len(sleeping("1322.5")) == 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sleeping("1322.5") == []
    assert set(child_pids()) <= children
    assert [record["state"] for record in desk.records("run.end")] == ["cancelled"]
    last = {record["rollout_id"]: record["state"] for record in desk.records("rollout.state")}
    assert sorted(last.values()) == ["cancelled"] * 3
    assert not list(desk.run_dir.rglob("*.open"))


async def test_a_recorder_that_dies_costs_an_attempt_not_the_run(desk: Desk, model: ModelServer) -> None:
    model.hang = True
    async with desk.orchestrator(retries=1) as orchestrator:
        rollout = await orchestrator.submit(desk.spec())
        await until(model.called.is_set)
        assert orchestrator.recorder is not None
        assert orchestrator.recorder.ready is not None
        model.hang, model.commands = False, answers
        started = time.monotonic()
        os.kill(orchestrator.recorder.ready.pid, signal.SIGKILL)
        await asyncio.wait_for(rollout.finished.wait(), 40)
    errors = [r for r in desk.records("rollout.state") if r["state"] == "error"]
    assert [(r["attempt"], r["error_class"]) for r in errors] == [(0, "recorder")]
    assert errors[0]["ts"] - errors[0]["duration_s"] > 0
    assert time.monotonic() - started < 40
    assert outcome(rollout) == ("done", None, 1.0)
    assert rollout.attempt == 1


async def test_a_recorder_of_several_takes_only_its_own_rollouts_with_it(desk: Desk, model: ModelServer) -> None:
    model.commands = lambda session, n: "echo 42 > answer.txt; sleep 2" if n == 0 else None
    async with desk.orchestrator(concurrency=4, retries=1, shards=2) as orchestrator:
        running = asyncio.create_task(orchestrator.run_all([desk.spec(sample=n) for n in range(4)]))
        await until(lambda: len(model.calls) == 4)
        assert orchestrator.recorder is not None
        assert orchestrator.recorder.ready is not None
        os.kill(orchestrator.recorder.ready.pid, signal.SIGKILL)
        rollouts = await running
    assert {outcome(rollout) for rollout in rollouts} == {("done", None, 1.0)}
    assert sorted(rollout.attempt for rollout in rollouts) == [0, 0, 1, 1]
    voids = [record for record in desk.records("rollout.state") if record["state"] == "error"]
    assert {record["error_class"] for record in voids} == {"recorder"}
    assert len({record["recorder_id"] for record in desk.records("call.close")}) in (2, 3)
    assert (desk.run_dir / "logs" / "recorder-1.log").exists()


async def test_a_policy_that_dies_ends_what_is_left_at_once(desk: Desk, model: ModelServer) -> None:
    model.hang = True
    async with desk.orchestrator(retries=3, concurrency=1) as orchestrator:
        first = await orchestrator.submit(desk.spec())
        second = await orchestrator.submit(desk.spec(sample=1))
        await until(model.called.is_set)
        desk.died.set()
        await asyncio.wait_for(asyncio.gather(first.finished.wait(), second.finished.wait()), 10)
    assert outcome(first) == outcome(second) == ("error", "policy", None)
    assert (first.attempt, second.attempt) == (0, 0)


async def test_s01_a_journal_that_breaks_stops_the_run_loudly(desk: Desk) -> None:
    async def run() -> None:
        async with desk.orchestrator() as orchestrator:
            runs.append(orchestrator)
            orchestrator.journal.broken = "disk full (a test)"
            await asyncio.wait_for(orchestrator.run_all([desk.spec()]), 20)

    runs: list[Orchestrator] = []
    with pytest.raises(JournalError):
        await run()
    assert all(rollout.finished.is_set() for rollout in runs[0].rollouts.values())


async def test_a_bug_in_one_attempt_is_its_error_and_the_others_go_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(work: Path, inside: str) -> list[str]:
        if (work / "tripwire").exists():
            raise RecursionError("name \udcff")
        return []

    monkeypatch.setattr("cluster.grading.clean_work", broken)
    async with desk.orchestrator(concurrency=2) as orchestrator:
        harnesses = [desk.harness(ASK + "touch tripwire", "odd"), desk.harness(ASK + "sleep 1", "fine")]
        odd, fine = await orchestrator.run_all([desk.spec(harness=harness) for harness in harnesses])
    assert outcome(odd) == ("error", "bug", None)
    assert outcome(fine) == ("done", None, 0.0)
    assert "Traceback" in (desk.run_dir / "logs" / f"{odd.id}.0.log").read_text(errors="replace")
    assert desk.records("run.end")[0]["state"] == "done"


DEEP = """echo 42 > answer.txt; python3 - <<'E'
import os
def nest(name, depth):
    os.chdir("/app")
    for _ in range(depth):
        os.mkdir(name); os.chdir(name)
nest("d", 1500); nest("n" * 250, 20)
os.chdir("/app")
for n in range(1500): os.symlink(f"l{n + 1}", f"l{n}")
E
"""


async def test_trees_too_deep_for_a_path_are_graded_and_removed(desk: Desk) -> None:
    assert outcome(await run_one(desk, ASK + DEEP)) == ("done", None, 1.0)


@pytest.mark.parametrize("plant", ["dir", "link", "fifo", "deep"])
def test_odd_leftovers_of_a_killed_run_do_not_stop_the_next_start(
    isolated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plant: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "openforge-sandboxes-left"
    outside = tmp_path / "outside"
    for folder in (left, outside):
        folder.mkdir()
        (folder / "kept").touch()
    if plant == "dir":
        (left / ".lock").mkdir()
    elif plant == "link":
        (outside / ".lock").touch()
        (tmp_path / "openforge-sandboxes-link").symlink_to(outside)
    elif plant == "fifo":
        os.mkfifo(left / ".lock")
    else:
        (left / ".lock").touch()
        monkeypatch.chdir(left)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        os.chdir(tmp_path)
    runtime = ProcessRuntime("require")
    assert (outside / "kept").exists()
    assert left.exists() == (plant in ("dir", "link"))
    remove_tree(runtime._base)


async def test_no_more_than_the_limit_run_at_once_and_harnesses_take_turns(desk: Desk) -> None:
    running: list[str] = []
    most = 0

    def on_event(rollout: Rollout) -> None:
        nonlocal most
        (running.append if rollout.state == "starting" else lambda name: None)(rollout.spec.harness.name)
        live = [r for r in orchestrator.rollouts.values() if r.state in ("starting", "running", "grading")]
        most = max(most, len(live))

    async with desk.orchestrator(concurrency=2, on_event=on_event) as orchestrator:
        harnesses = [desk.harness(ASK, name) for name in ("one", "two")]
        specs = [desk.spec(harness=harness, sample=n) for harness in harnesses for n in range(3)]
        await orchestrator.run_all(specs)
    assert most == 2
    assert running[:2] in (["one", "two"], ["two", "one"])


async def test_two_orchestrators_at_once_do_not_meet(desk: Desk, model: ModelServer, tmp_path: Path) -> None:
    model.commands = answers
    (tmp_path / "other").mkdir()
    other = Desk(tmp_path / "other", model)
    first, second = await asyncio.gather(run_one(desk), run_one(other))
    assert outcome(first) == outcome(second) == ("done", None, 1.0)
    assert len(desk.records("call.close")) == len(other.records("call.close")) == 2


async def test_a_killed_orchestrator_leaves_folders_that_the_next_one_removes(desk: Desk) -> None:
    runtime = ProcessRuntime("require")
    base = runtime.new_folder().parent
    runtime._lock.close()  # what the kernel does when a process is killed
    other = ProcessRuntime("require")
    assert not base.exists()
    await other.start()
    await other.close()


def sleeping(mark: str) -> list[int]:
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if f"sleep\0{mark}\0".encode() == _cmdline(pid)
    ]


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def child_pids() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
