"""What breaks in a cluster, done to a real one: each rollout ends in one right state and nothing stays behind."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from desk import Desk, until

from cluster import docker, kind, leases
from cluster.kind_place import NodeImages
from cluster.kube import Kube
from cluster.orchestrator import Orchestrator, Rollout
from cluster.runtimes import kubernetes
from cluster.runtimes.pod_spec import ROLE
from cluster.task_image import RolloutImage

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]
SOLVE = "echo 42 > answer.txt; sleep 3; echo slept"


async def pods_of(kube: Kube) -> list[dict[str, Any]]:
    return list((await kube.list_pods(f"{ROLE}=rollout"))["items"])


async def run_and(
    pods: Desk, do: Callable[[Orchestrator], Awaitable[None]], *, count: int = 1, commands: list[str], **options: Any
) -> list[Any]:
    """Rollouts, and something done to their cluster once all of their models have been asked."""
    pods.model.commands = lambda session, n: commands[n] if n < len(commands) else None
    async with pods.orchestrator(
        **{"retries": 1, "time_limit_s": 60.0, "concurrency": count, **options}
    ) as orchestrator:
        task = pods.task()
        running = asyncio.create_task(orchestrator.run_all([pods.spec(task, sample=n) for n in range(count)]))
        await until(lambda: len(pods.model.calls) >= count, 120)
        await do(orchestrator)
        return await running


def on_node(cluster: kind.Cluster, *argv: str) -> str:
    return docker.docker("exec", f"{cluster.name}-control-plane", *argv, step="on the node")


async def test_a_pod_that_somebody_deleted_is_an_error_of_ours_and_tried_again(pods: Desk, kube: Kube) -> None:
    async def delete(orchestrator: Orchestrator) -> None:
        [pod] = await pods_of(kube)
        await kube.delete_pod(pod["metadata"]["name"])

    [rollout] = await run_and(pods, delete, commands=[SOLVE])
    assert (rollout.state, rollout.attempt, rollout.result.grade.reward) == ("done", 1, 1.0)
    [void] = [record for record in pods.records("rollout.state") if record["state"] == "error"]
    assert void["error_class"] == "evicted"
    assert len(pods.records("grade")) == 1
    assert await pods_of(kube) == []


async def test_too_much_memory_is_the_agents_doing_and_graded(pods: Desk, kube: Kube) -> None:
    async def nothing(orchestrator: Orchestrator) -> None: ...

    hog = "echo 42 > answer.txt; python3 -c 'x = bytearray(10**9); print(len(x))'"
    [rollout] = await run_and(pods, nothing, commands=[hog], sandbox={"memory": "96Mi"})
    assert (rollout.state, rollout.attempt, rollout.result.error_class) == ("failed", 0, "memory")
    assert await pods_of(kube) == []


async def test_an_image_that_is_not_there_is_told_at_once(
    pods: Desk, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(self: NodeImages, order: object) -> RolloutImage:
        return RolloutImage("openforge/no-such-image:1")

    monkeypatch.setattr(NodeImages, "__call__", missing)
    async with pods.orchestrator(retries=0) as orchestrator:
        async with asyncio.timeout(60):
            [rollout] = await orchestrator.run_all([pods.spec()])
    assert (rollout.state, rollout.result.error_class) == ("error", "image")
    assert "openforge/no-such-image:1" in rollout.result.detail
    assert await pods_of(kube) == []


async def test_the_api_server_restarts_under_thirty_rollouts(pods: Desk, kube: Kube, cluster: kind.Cluster) -> None:
    async def kill(orchestrator: Orchestrator) -> None:
        live.extend(rollout for rollout in orchestrator.rollouts.values() if rollout.state == "running")
        on_node(cluster, "pkill", "-KILL", "kube-apiserver")

    live: list[Rollout] = []
    rollouts = await run_and(pods, kill, count=30, commands=[SOLVE, "sleep 40; echo slept"], time_limit_s=200.0)
    assert len(live) == 30
    assert [record for record in pods.records("rollout.state") if record["state"] == "error"] == []
    assert [(r.state, r.attempt, r.result.grade.reward) for r in rollouts] == [("done", 0, 1.0)] * 30
    assert await pods_of(kube) == []


async def test_a_kubelet_that_stops_for_a_while_loses_nothing(pods: Desk, kube: Kube, cluster: kind.Cluster) -> None:
    async def stop(orchestrator: Orchestrator) -> None:
        on_node(cluster, "pkill", "-STOP", "kubelet")
        await asyncio.sleep(6)
        on_node(cluster, "pkill", "-CONT", "kubelet")

    rollouts = await run_and(pods, stop, count=2, commands=[SOLVE])
    assert [(r.state, r.result.grade.reward) for r in rollouts] == [("done", 1.0)] * 2
    assert len(pods.records("grade")) == 2
    assert await pods_of(kube) == []


async def test_a_recorder_that_was_killed_is_started_again_and_reached(pods: Desk, kube: Kube) -> None:
    async def kill(orchestrator: Orchestrator) -> None:
        recorder = orchestrator.recorder
        assert recorder is not None
        assert recorder.ready is not None
        os.kill(recorder.ready.pid, signal.SIGKILL)

    [rollout] = await run_and(pods, kill, commands=[SOLVE])
    assert (rollout.state, rollout.attempt, rollout.result.grade.reward) == ("done", 1, 1.0)
    [void] = [record for record in pods.records("rollout.state") if record["state"] == "error"]
    assert void["error_class"] == "recorder"
    assert await pods_of(kube) == []


async def test_cancelled_while_it_starts_or_runs_a_rollout_leaves_no_pod(pods: Desk, kube: Kube) -> None:
    pods.model.commands = lambda session, n: "sleep 60"
    async with pods.orchestrator(concurrency=3) as orchestrator:
        task = pods.task()
        rollouts = [await orchestrator.submit(pods.spec(task, sample=n)) for n in range(3)]
        for wait_s in (0.3, 1.2):
            await asyncio.sleep(wait_s)
            await orchestrator.cancel(rollouts.pop().id)
        await until(lambda: pods.model.calls, 60)
    assert {record["state"] for record in pods.records("rollout.state")} >= {"cancelled"}
    assert await pods_of(kube) == []


async def test_pods_of_an_orchestrator_that_was_killed_are_removed_by_the_next_one(
    pods: Desk, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgotten(*_: object) -> None: ...

    monkeypatch.setattr(kubernetes, "_LEASE_S", 10)
    with monkeypatch.context() as killed:  # it ends without a word to the cluster, as kill -9 makes it
        killed.setattr(kubernetes.KubernetesRuntime, "_end", forgotten)
        killed.setattr(leases, "drop", forgotten)
        async with pods.orchestrator() as orchestrator:
            await orchestrator.run_all([pods.spec()])
    async with pods.orchestrator():
        assert len(await pods_of(kube)) == 1  # its lease still holds: it could be alive
    await asyncio.sleep(10)
    async with pods.orchestrator():
        assert [pod for pod in await pods_of(kube) if not pod["metadata"].get("deletionTimestamp")] == []
