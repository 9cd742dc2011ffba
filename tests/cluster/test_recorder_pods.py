"""The recorder as a pod of a real kind cluster that is used as one far away: what comes home, who reaches it, what is
left, and what happens when it, the stream to it or the orchestrator is cut off."""

import asyncio
import errno
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from desk import Desk, until
from remote_desk import gone, left, recorders, start
from token_server import TokenServer

from cluster import docker, kind, leases, recorder_copy
from cluster.kube import Kube, PodWatch
from cluster.orchestrator import Orchestrator
from cluster.recorder import RecorderError
from cluster.runtimes import pod_spec, pod_state
from cluster.runtimes.pod_spec import AGENT, PROGRAM, ROLE, RUN
from openforge.config.models import Sampling, Sandbox, Target
from openforge.ids import RunId
from openforge.journal.records import JournalError
from openforge.store.connect import query

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SOLVE = "echo 42 > answer.txt; sleep 3; echo slept"
PLACE_AND_TIME = {"recorder_id", "seq", "ts", "run_id", "ttft_s", "duration_s"}
PLACE_AND_TIME |= {
    "call_id",
    "call_ids",
    "parent_call_id",
    "sample_id",
    "gate",
    "id",
    "tool_call_id",
    "created",
}  # made up anew


async def run(desk: Desk, commands: list[str], count: int = 1, **options: Any) -> list[Any]:
    """Rollouts whose model gives these commands, one after the other."""
    desk.model.commands = lambda session, n: commands[n] if n < len(commands) else None
    task = desk.task()
    async with desk.orchestrator(**options) as orchestrator:
        return await orchestrator.run_all([desk.spec(task, sample=sample) for sample in range(count)])


async def run_and(
    desk: Desk, do: Callable[[Orchestrator], Awaitable[None]], *, count: int = 1, commands: list[str], **options: Any
) -> list[Any]:
    """As `run`, and something done once all of their models have been asked."""
    desk.model.commands = lambda session, n: commands[n] if n < len(commands) else None
    told = {"retries": 1, "time_limit_s": 60.0, "concurrency": count, **options}
    async with desk.orchestrator(**told) as orchestrator:
        task = desk.task()
        running = asyncio.create_task(orchestrator.run_all([desk.spec(task, sample=n) for n in range(count)]))
        await until(lambda: sum(desk.model.calls.values()) >= count, 120)
        await do(orchestrator)
        return await running


def on_node(cluster: kind.Cluster, *argv: str) -> str:
    return docker.docker("exec", f"{cluster.name}-control-plane", *argv, step="on the node")


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record but for where and when it was made: two runs of the same differ in nothing else."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(part) for key, part in value.items() if key not in PLACE_AND_TIME}
        return [strip(part) for part in value] if isinstance(value, list) else value

    kept = dict(strip({**record, "rollout_id": (record["rollout_id"] or "").partition(".")[2]}))
    return {key: value for key, value in kept.items() if key not in ("host", "request")}  # where and who it was


def ordered(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two rollouts at once are written in any order."""
    return sorted((plain(record) for record in records), key=lambda record: json.dumps(record, sort_keys=True))


@pytest.mark.parametrize("mode", ["record", "train"])
async def test_the_store_here_has_what_a_recorder_here_would_have_put_there(
    far: Desk, kube: Kube, cluster: kind.Cluster, qwen3_dir: Path, tmp_path: Path, mode: str
) -> None:
    policy = {"tokenizer": str(qwen3_dir), "sampling": Sampling(max_tokens=512)}
    tokens = TokenServer(qwen3_dir)
    await tokens.start(kind.host_address())
    if mode == "train":
        far.model, policy["engine"] = tokens, "vllm"
    here = Desk(tmp_path / "here", far.model, Target(name="kind", kind="kind", cluster=cluster.name))
    for desk in (here, far):
        commands = ["cat start.txt; echo 42 > answer.txt", "ls"]
        rollouts = await run(desk, commands, count=2, policy=policy, mode=mode)
        assert [(r.state, r.reward) for r in rollouts] == [("done", 1.0)] * 2
        assert [r.result.sealed.calls for r in rollouts] == [3, 3]
    await tokens.stop()
    for kind_of_record in ("call.open", "call.close", "sample", "vocab", "grade"):
        got, wanted = (ordered(desk.records(kind_of_record)) for desk in (far, here))
        assert got == wanted
        assert got
    for recorder_id in {record["recorder_id"] for record in far.records()}:
        seqs = [record["seq"] for record in far.records() if record["recorder_id"] == recorder_id]
        assert seqs == list(range(len(seqs)))
    assert list(far.run_dir.glob("journal/*/*.open*")) == []
    sql = "SELECT count(*) AS n, sum(length(completion_ids)) > 0 AS ids FROM calls"
    assert query(far.store, sql) == query(here.store, sql) == [{"n": 6, "ids": True}]
    sql = "SELECT count(*) AS n, sum(length(token_ids)) > 0 AS ids FROM samples"
    assert query(far.store, sql) == query(here.store, sql) == [{"n": 2, "ids": True}]
    assert query(far.store, "SELECT count(*) > 0 AS there FROM tokens WHERE text IS NOT NULL") == [{"there": True}]
    await gone(kube, far.run_dir.name)


async def test_two_shards_have_an_address_each_and_share_the_rollouts(far: Desk, kube: Kube) -> None:
    seen: list[int] = []

    async def look(orchestrator: Orchestrator) -> None:
        services = await kube.ask("GET", f"/api/v1/namespaces/{kube.namespace}/services")
        assert services is not None
        addresses = {item["spec"]["clusterIP"] for item in services["items"] if "recorder-" in item["metadata"]["name"]}
        assert addresses == {orchestrator.runtime.door(shard)[0] for shard in range(2)}  # type: ignore[attr-defined]
        seen.append(len(await recorders(kube)))

    rollouts = await run_and(far, look, count=4, commands=[SOLVE], shards=2)
    assert [(rollout.state, rollout.reward) for rollout in rollouts] == [("done", 1.0)] * 4
    assert seen == [2]
    asked = Counter(record["recorder_id"] for record in far.records("call.close"))
    assert sorted(asked.values()) == [4, 4]
    await gone(kube, far.run_dir.name)


async def test_a_rollout_reaches_the_recorders_two_ports_and_nothing_else_reaches_it(far: Desk, kube: Kube) -> None:
    service, port = await kube.service_address()
    told: list[str] = []

    async def look(orchestrator: Orchestrator) -> None:
        [pod] = await recorders(kube)
        address = pod["status"]["podIP"]
        [rollout] = (await kube.list_pods(f"{ROLE}=rollout"))["items"]
        stable = orchestrator.runtime.door(0)[0]  # type: ignore[attr-defined]
        doors = [(host, number) for host in (address, stable) for number in (8080, 8081)]
        closed = [(host, number) for host in (address, stable) for number in (8082, 22, 443)]
        closed += [(service, port)]
        asked = {"forbidden": closed, "needed": doors, "patience_s": 1.0}
        argv = [*PROGRAM, "ready", json.dumps(asked)]
        said: list[bytes] = []
        await kube.execute(rollout["metadata"]["name"], AGENT, argv, on_output=said.append)
        answer = json.loads(b"".join(said))
        assert (answer["open"], answer["closed"]) == ([], [])
        told.append(await self_made(kube, rollout["spec"]["containers"][0]["image"], doors, (service, port)))

    [rollout] = await run_and(far, look, commands=["echo 42 > answer.txt; sleep 15"])
    assert rollout.reward == 1.0
    assert json.loads(told[0])["open"] == []  # a pod that is no rollout of this run, though no wall holds it
    assert json.loads(told[0])["closed"] == []


async def self_made(kube: Kube, image: str, doors: list[Any], needed: tuple[str, int]) -> str:
    """What a pod that somebody else made reaches."""
    pod = pod_spec.rollout_pod(
        "somebody",
        image,
        Sandbox(),
        labels={ROLE: "somebody", RUN: "somebody"},
        rollout_id="somebody",
        attempt=0,
        deadline_s=60,
        requests={"cpu": "10m", "memory": "32Mi"},
        pull_policy="IfNotPresent",
        node_selector={},
    )
    watch = PodWatch(kube, f"{RUN}=somebody")
    await watch.start()
    said: list[bytes] = []
    try:
        await kube.create_pod(pod)
        async with asyncio.timeout(60):
            await watch.until("somebody", lambda pod: pod is not None and pod_state.runs(pod))
        asked = {"forbidden": doors, "needed": [needed], "patience_s": 15.0}
        await kube.execute("somebody", AGENT, [*PROGRAM, "ready", json.dumps(asked)], on_output=said.append)
    finally:
        await kube.delete_pod("somebody")
        await watch.close()
    return b"".join(said).decode()


async def test_a_recorder_whose_pod_is_deleted_costs_an_attempt_and_no_reward_is_unearned(
    far: Desk, kube: Kube
) -> None:
    async def delete(orchestrator: Orchestrator) -> None:
        [pod] = await recorders(kube)
        await kube.delete_pod(pod["metadata"]["name"])

    [rollout] = await run_and(far, delete, commands=[SOLVE])
    assert (rollout.state, rollout.attempt, rollout.reward) == ("done", 1, 1.0)
    [void] = [record for record in far.records("rollout.state") if record["state"] == "error"]
    assert (void["error_class"], void["attempt"]) == ("recorder", 0)
    assert [record["attempt"] for record in far.records("grade")] == [1]
    await gone(kube, far.run_dir.name)


async def test_what_a_recorder_wrote_before_it_was_killed_comes_home(
    far: Desk, kube: Kube, cluster: kind.Cluster
) -> None:
    async def kill(orchestrator: Orchestrator) -> None:
        on_node(cluster, "pkill", "-KILL", "-f", "^/opt/recorder.*proxy_addons.pod")

    [rollout] = await run_and(far, kill, commands=[SOLVE])
    assert (rollout.state, rollout.attempt, rollout.reward) == ("done", 1, 1.0)
    calls = {(record["attempt"], record["kind"]) for record in far.records("call.open", "call.close")}
    assert calls == {(0, "call.open"), (0, "call.close"), (1, "call.open"), (1, "call.close")}
    assert len([record for record in far.records("call.close") if record["attempt"] == 1]) == 2


async def test_streams_that_are_cut_lose_nothing(far: Desk, kube: Kube, cluster: kind.Cluster) -> None:
    async def cut(orchestrator: Orchestrator) -> None:
        on_node(cluster, "pkill", "-KILL", "-f", "recorder_link.py")
        await asyncio.sleep(1)
        on_node(cluster, "pkill", "-KILL", "kube-apiserver")

    rollouts = await run_and(far, cut, count=4, commands=[SOLVE, "sleep 5; echo slept"])
    assert [(r.state, r.attempt, r.reward) for r in rollouts] == [("done", 0, 1.0)] * 4
    [recorder_id] = {record["recorder_id"] for record in far.records("call.open")}
    seqs = [record["seq"] for record in far.records() if record["recorder_id"] == recorder_id]
    assert seqs == list(range(len(seqs)))
    assert len(far.records("call.close")) == 12


async def test_a_disk_here_that_is_full_stops_the_run_loudly(
    far: Desk, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def fill(orchestrator: Orchestrator) -> None:
        monkeypatch.setattr(recorder_copy._Copied, "write", full)

    with pytest.raises(JournalError, match="No space left"):
        await run_and(far, fill, commands=[SOLVE])
    assert [record["state"] for record in far.records("run.end")] == ["error"]
    assert far.records("grade") == []
    await gone(kube, far.run_dir.name)


async def test_a_recorder_that_cannot_start_says_why(far: Desk, kube: Kube, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecorderError, match=r"has no tokenizer\.json"):
        await run(far, [], policy={"tokenizer": str(tmp_path / "empty")})
    await gone(kube)


async def test_what_a_killed_orchestrator_left_is_removed_by_the_next_one(far: Desk, kube: Kube) -> None:
    far.model.hang = True
    process = await start(far)
    await asyncio.wait_for(far.model.called.wait(), 120)
    process.kill()
    await process.communicate()
    [run_dir] = (far.store / "runs").iterdir()
    there = await left(kube, run_dir.name)
    assert [name.partition("/")[0] for name in there] == [
        *("leases", "networkpolicies", "networkpolicies", "pods", "pods", "secrets", "services")
    ]
    far.model.hang = False
    await run(far, ["true"])  # another run: the lease of the killed one still holds
    assert await left(kube, run_dir.name) == there
    [lease] = [name.partition("/")[2] for name in there if name.startswith("leases/")]
    await leases.hold(kube, lease, {RUN: run_dir.name}, 1)
    await asyncio.sleep(1.1)
    await run(far, ["true"])
    await gone(kube, run_dir.name)
    [rollout] = await run(far, ["echo 42 > answer.txt"], run_id=RunId(run_dir.name))
    assert (rollout.state, rollout.attempt, rollout.reward) == ("done", 1, 1.0)
    await gone(kube)
