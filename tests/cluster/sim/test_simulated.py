"""A whole simulated cluster: the orchestrator's rollouts on it, and what its fleet file makes go wrong."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.kube import Kube
from cluster.launch import engine_for, make_specs, orchestrate
from cluster.rollout import Rollout
from cluster.runtimes.pod_spec import ROLE
from cluster.sim import control_plane
from cluster.sim.control_plane import API, ControlPlane
from cluster.sim.fleet_file import read_fleet
from openforge.config.load import load
from openforge.journal.reader import read_records

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
NAME = f"openforge-test-{os.getpid()}"  # two sessions at once do not meet
NODES = 'version = 1\n[[nodes]]\nname = "cpu"\ncount = 10\n[pods]\nstart_s = [0.0, 0.2]\n'
QUICK = "[rollouts]\nrun_s = [0.5, 1.0]\nreward = 1.0\n"
SLOW = "[rollouts]\nrun_s = [4.0, 4.5]\nreward = 1.0\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    fleet = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    fleet.write_text(NODES)
    yield control_plane.up(NAME, read_fleet(fleet), print)
    control_plane.down(NAME)


@pytest.fixture
async def kube(plane: ControlPlane) -> AsyncIterator[Kube]:
    kube = await Kube.connect(plane.kubeconfig, "sim", "openforge")
    yield kube
    await kube.close()


async def simulate(
    folder: Path, fleet: str, rollouts: int = 30, **run: Any
) -> tuple[list[Rollout], list[dict[str, Any]]]:
    """So many rollouts on the fleet, all at once if it has the room; with the records of their states."""
    (folder / "fleet.toml").write_text(NODES + fleet)
    changes = {"target.cluster": NAME, "target.fleet": "fleet.toml", "run.concurrency": rollouts, "run.retries": 3}
    changes |= {"run.tasks": ["desk/count-lines"], "run.samples": rollouts} | run
    config = load(folder, "sim", changes, env={}).config
    async with engine_for(config, None, print) as engine:
        async with orchestrate(config, folder, engine, project=folder, say=print) as orchestrator:
            ended = await orchestrator.run_all(make_specs(config, folder))
    return ended, list(read_records(orchestrator.run_dir, ("rollout.state", "grade")))


async def left(kube: Kube) -> list[Any]:
    return list((await kube.list_pods(f"{ROLE}=rollout"))["items"])


def check(ended: list[Rollout], records: list[dict[str, Any]]) -> Counter[str]:
    """Each rollout has one end and, if it was graded, one grade; the classes of the errors on the way."""
    assert Counter(str(rollout.state) for rollout in ended) == {"done": len(ended)}
    grades = Counter(record["rollout_id"] for record in records if record["kind"] == "grade")
    assert grades == {rollout.id: 1 for rollout in ended}
    return Counter(record["error_class"] for record in records if record.get("state") == "error")


async def test_every_rollout_goes_through_its_states_and_leaves_nothing(tmp_path: Path, kube: Kube) -> None:
    ended, records = await simulate(tmp_path, QUICK)
    assert check(ended, records) == {}
    mine = [record["state"] for record in records if record["rollout_id"] == ended[0].id and "state" in record]
    assert mine == ["queued", "starting", "running", "grading", "done"]
    assert {rollout.reward for rollout in ended} == {1.0}
    assert await left(kube) == []


@pytest.mark.parametrize("kind", ["evict", "delete"])
async def test_pods_that_are_taken_away_are_tried_again(tmp_path: Path, kube: Kube, kind: str) -> None:
    ended, records = await simulate(tmp_path, f'{SLOW}[[faults]]\nkind = "{kind}"\nat_s = 3.0\nshare = 0.3\n')
    errors = check(ended, records)
    assert set(errors) == {"evicted"}
    assert errors["evicted"] >= 3
    assert await left(kube) == []


async def test_pods_killed_for_their_memory_are_the_agents_doing(tmp_path: Path, kube: Kube) -> None:
    late = SLOW.replace("[4.0, 4.5]", "[12.0, 12.5]")  # all run by then, on a busy machine, too
    ended, _ = await simulate(tmp_path, f'{late}[[faults]]\nkind = "oom"\nat_s = 10.0\nshare = 0.3\n')
    states = Counter((str(rollout.state), rollout.result.error_class) for rollout in ended)
    assert set(states) == {("done", None), ("failed", "memory")}
    assert {rollout.attempt for rollout in ended} == {0}
    assert await left(kube) == []


async def test_a_node_that_is_lost_takes_its_pods_and_they_go_elsewhere(tmp_path: Path, kube: Kube) -> None:
    fault = '[[faults]]\nkind = "node-lost"\nat_s = 3.0\nshare = 0.5\nfor_s = 4.0\n'
    ended, records = await simulate(tmp_path, SLOW + fault)
    assert check(ended, records)["evicted"] >= 3
    assert await left(kube) == []


async def test_an_api_server_that_restarts_costs_no_rollout(tmp_path: Path, kube: Kube) -> None:
    fault = '[[faults]]\nkind = "api-down"\nat_s = 3.0\nfor_s = 3.0\n'
    ended, records = await simulate(tmp_path, SLOW + fault)
    assert check(ended, records) == {}
    assert {rollout.attempt for rollout in ended} == {0}
    assert await left(kube) == []


async def test_pods_that_find_no_room_wait_for_it(tmp_path: Path, kube: Kube) -> None:
    """Ten nodes of 32 cores, and 8 cores a pod: there is room for 40."""
    ended, records = await simulate(tmp_path, QUICK, 60, **{"sandbox.request_cpu": 4})
    assert check(ended, records) == {}
    assert await left(kube) == []


async def test_no_node_has_more_than_its_share(tmp_path: Path, kube: Kube) -> None:
    running = asyncio.create_task(simulate(tmp_path, SLOW, 30, **{"target.per_node": 2}))
    most: Counter[str] = Counter()
    while not running.done():
        now = Counter(pod["spec"].get("nodeName", "") for pod in await left(kube))
        del now[""]
        most |= now
        await asyncio.sleep(0.3)
    ended, records = await running
    assert check(ended, records) == {}
    assert most == dict.fromkeys((f"cpu-{number:03}" for number in range(10)), 2)


async def test_a_control_plane_that_half_died_is_made_anew(plane: ControlPlane, tmp_path: Path) -> None:
    control_plane.kill(plane, API)
    assert control_plane.status(NAME).state == "broken"
    (tmp_path / "fleet.toml").write_text(NODES)
    again = control_plane.up(NAME, read_fleet(tmp_path / "fleet.toml"), print)
    assert again.state == "ready"
    assert control_plane.up(NAME, read_fleet(tmp_path / "fleet.toml"), print) == again


def typed(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(project), *words, "--target", "sim"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    named = ["--set", f"target.cluster={NAME}-typed"]
    return subprocess.run([*argv, *named], capture_output=True, text=True, timeout=120, env=env)


def test_up_run_and_down_as_typed(tmp_path: Path) -> None:
    fleet = tmp_path / "small.toml"
    fleet.write_text(NODES.replace("10", "3") + QUICK)
    (tmp_path / "openforge.toml").write_text('version = 1\n[target.sim]\nfleet = "small.toml"\n')
    try:
        up = typed(tmp_path, "up", "-o", "json")
        assert up.returncode == 0, up.stderr
        assert (json.loads(up.stdout)["state"], json.loads(up.stdout)["nodes"]) == ("ready", 3)
        run = typed(tmp_path, "run", "--samples", "2", "-o", "json")
        assert run.returncode == 0, run.stderr
        [row] = json.loads(run.stdout)
        assert (row["rollouts"], row["done"], row["reward"]) == (24, 24, 1.0)
        refused = typed(tmp_path, "tasks", "validate", "desk")
        assert (refused.returncode, "nothing runs in the pods" in refused.stderr) == (2, True)
    finally:
        down = typed(tmp_path, "down")
    assert (down.returncode, "is gone" in down.stderr) == (0, True)
    assert control_plane.status(f"{NAME}-typed").state == "absent"
    missing = typed(tmp_path, "run")
    assert missing.returncode == 3
    assert "openforge up --target sim" in missing.stderr
