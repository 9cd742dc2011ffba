"""Asking the orchestrators of a store, over real HTTP: one that hangs, dies, comes back, or talks nonsense."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.run_lock import RunLock
from openforge.store.fold import Answered
from openforge_tui import in_flight
from openforge_tui.in_flight import InFlight, by_group, call_rows, just_answered
from tests.openforge_tui.fake_orchestrator import FakeOrchestrator, call

RUN = "r0000000aaa"


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that a test can wait for."""
    for name, seconds in (("_PATIENCE_S", 0.2), ("_LATE_S", 0.1)):
        monkeypatch.setattr(in_flight, name, seconds)
    monkeypatch.setattr("openforge_tui.live_status.ANSWER_S", 0.5)


@pytest.fixture
async def watch(tmp_path: Path, brisk: None) -> AsyncIterator[InFlight]:
    made = InFlight(tmp_path)
    yield made
    await made.close()


async def test_calls_of_all_runs_come_the_oldest_first(tmp_path: Path, watch: InFlight) -> None:
    assert await watch.look() == []
    one, two = (FakeOrchestrator(tmp_path, run) for run in (RUN, "r0000000bbb"))
    one.calls = [call(1, f"{RUN}.fix-mean.react.0", age_s=2), call(2, f"{RUN}.fix-mean.pi.7", shard=1, age_s=9)]
    two.calls = [call(1, "r0000000bbb.sort-csv.react.0", age_s=5)]
    await one.start()
    await two.start()
    standings = await watch.look()
    rows = call_rows(standings)
    assert [(row["run"], row["harness"], row["sample"], row["shard"], row["age_s"]) for row in rows] == [
        (RUN, "pi", 7, 1, 9),
        ("r0000000bbb", "react", 0, 0, 5),
        (RUN, "react", 0, 0, 2),
    ]
    assert standings[0].summary() == (
        f"{RUN}  rollouts: 2 queued, 3 running, 4 done · calls: 1 on shard 0, 1 on shard 1"
    )
    shards = [(row["group"], row["calls"], row["oldest"]) for row in by_group(rows, "shard", {})]
    assert shards == [(f"{RUN} shard 0", 1, 2), (f"{RUN} shard 1", 1, 9), ("r0000000bbb shard 0", 1, 5)]
    assert [(row["group"], row["calls"], row["mean"]) for row in by_group(rows, "harness", {})] == [
        ("pi", 1, 9),
        ("react", 2, 3.5),
    ]
    await one.end()
    assert [standing.run_id for standing in await watch.look()] == ["r0000000bbb"]
    await two.end()


async def test_one_that_hangs_holds_up_nobody_and_is_asked_once_at_a_time(tmp_path: Path, watch: InFlight) -> None:
    slow, quick = FakeOrchestrator(tmp_path, RUN), FakeOrchestrator(tmp_path, "r0000000bbb")
    slow.calls = quick.calls = [call(1, f"{RUN}.t.react.0")]
    await slow.start()
    await quick.start()
    assert len(call_rows(await watch.look())) == 2
    slow.open.clear()
    asked = slow.asked
    for _ in range(2):
        first, second = await watch.look()
    assert first.trouble.startswith(f"run {RUN}: its orchestrator does not answer, for ")
    assert (second.trouble, second.fresh) == ("", True)
    assert len(call_rows([first, second])) == 1
    assert slow.asked == asked + 1
    slow.open.set()
    assert (await watch.look())[0].trouble == ""
    await slow.end()
    await quick.end()


async def test_one_that_comes_back_elsewhere_is_found_again(tmp_path: Path, watch: InFlight) -> None:
    run = FakeOrchestrator(tmp_path, RUN)
    await run.start()
    assert (await watch.look())[0].fresh
    await run.die()
    while not (await watch.look())[0].trouble:
        pass
    await run.start()
    standing = (await watch.look())[0]
    assert (standing.fresh, standing.trouble) == (True, "")
    await run.end()


async def test_a_file_left_by_a_dead_one_is_no_news_whoever_has_its_number(tmp_path: Path, watch: InFlight) -> None:
    run = FakeOrchestrator(tmp_path, RUN)  # this process lives, and is not that orchestrator
    await run.start()
    await run.die()
    while (standing := (await watch.look())[0]).silent_s < 0.2:
        pass
    assert (standing.fresh, standing.trouble) == (False, "")


async def test_one_whose_process_is_gone_is_said_to_have_died(tmp_path: Path, watch: InFlight) -> None:
    child = subprocess.Popen(["true"])  # noqa: ASYNC220
    child.wait()
    run = FakeOrchestrator(tmp_path, RUN, pid=child.pid)
    await run.start()
    await watch.look()
    await run.die()
    while not (standing := (await watch.look())[0]).trouble:
        pass
    assert standing.trouble == f"run {RUN}: its orchestrator, process {child.pid}, died; what it has graded stays"


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "[" * 100_000, '{"url": 3, "token": "x", "pid": 1}', '{"url": "http://127.0.0.1:1"}'),
        *(f'{{"url": "http://127.0.0.1:1", "token": "x", "pid": {pid}}}' for pid in ("1e999", "9" * 30)),
    ],
)
async def test_a_file_that_says_nothing_harms_nobody(tmp_path: Path, watch: InFlight, text: str) -> None:
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    RunLock(tmp_path / "runs" / RUN).take()
    (tmp_path / "runs" / RUN / "orchestrator.json").write_text(text)
    [standing] = await watch.look()
    assert not standing.fresh
    assert call_rows([standing]) == []


def test_tokens_a_second_by_shard_and_by_harness() -> None:
    rows = [
        {"run": "r1", "shard": shard, "recorder_id": f"rec-{shard}", "harness": harness, "stage": "s", "age_s": 1.0}
        | {"rollout_id": f"r1.t.{harness}.0"}
        for shard, harness in ((0, "pi"), (1, "codex"))
    ]
    answered = {
        "r1": [Answered(100.0, "r1.t.pi.0", "rec-0", 30), Answered(101.0, "r1.t.pi.1", "rec-1", 70)],
        "r2": [Answered(100.0, "r2.t.pi.0", "rec-9", 100)],
    }
    assert [row["tokens_s"] for row in by_group(rows, "shard", answered)] == [3.0, 7.0]
    assert [row["tokens_s"] for row in by_group(rows, "harness", answered)] == [0.0, 20.0]


def test_calls_that_a_clock_has_dated_ahead_are_not_answered_now_for_ever() -> None:
    calls = [Answered(at, "r1.t.pi.0", "rec-0", 30) for at in (80.0, 95.0, 101.0, 3700.0)]
    followed = [SimpleNamespace(fold=SimpleNamespace(run_id="r1", recent=calls))]
    assert [call.ts for call in just_answered(followed, 100.0)["r1"]] == [95.0, 101.0]
