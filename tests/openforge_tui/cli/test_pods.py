"""`openforge up`, `images`, and runs in pods, as a person types them, on a real cluster."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import docker, kind
from cluster.base_image import ensure_base

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]


def typed(project: Path, cluster: kind.Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    target = ["--target", "kind", "--set", f"target.cluster={cluster.name}"]
    argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(project), *words, *target]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, capture_output=True, text=True, timeout=600, env=env)


def test_up_again_changes_nothing_and_proves_the_walls(tmp_path: Path, cluster: kind.Cluster) -> None:
    said = [typed(tmp_path, cluster, "up", "-o", "json") for _ in range(2)]
    assert [done.returncode for done in said] == [0, 0], [done.stderr for done in said]
    told = json.loads(said[1].stdout)
    assert (told["cluster"], told["state"], told["loaded"]) == (cluster.name, "ready", 0)
    assert told["walls"].startswith("hold")
    assert kind.status(cluster.name).container == cluster.container
    assert "docker build" not in said[1].stderr


def test_images_say_what_is_in_them(tmp_path: Path, cluster: kind.Cluster) -> None:
    assert typed(tmp_path, cluster, "up").returncode == 0
    rows = json.loads(typed(tmp_path, cluster, "images", "ls", "-o", "json").stdout)
    [react, *_] = [row for row in rows if row["image"].startswith("openforge/harness-react:")]
    assert (react["kind"], react["size_mb"] > 100) == ("harness", True)
    packages = json.loads(typed(tmp_path, cluster, "images", "show", react["image"], "-o", "json").stdout)
    assert next(row["version"] for row in packages if row["package"] == "libc6").startswith("2.36")


@pytest.mark.parametrize("name", ["react", "pi"])
def test_a_real_harness_solves_a_task_in_a_pod(tmp_path: Path, cluster: kind.Cluster, name: str) -> None:
    done = typed(tmp_path, cluster, "harness", "check", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    seen = {row["what"]: row["seen"] for row in json.loads(done.stdout)}
    assert (seen["reward"], seen["exit_code"]) == (1.0, 0)
    assert seen["breaks"] == {"root": 1, "append": seen["calls"] - 1}


def test_tasks_are_valid_in_pods_too(tmp_path: Path, cluster: kind.Cluster) -> None:
    done = typed(tmp_path, cluster, "tasks", "validate", "desk/fix-mean", "desk/rename-md", "-o", "json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert {(row["check"], row["got"]) for row in json.loads(done.stdout)} >= {("oracle", 1.0), ("nothing", 0.0)}


def test_a_cluster_of_somebody_else_stays_as_it_is(
    tmp_path: Path, cluster: kind.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "another"))  # where nothing is known of this cluster
    for word in ("up", "down"):
        done = typed(tmp_path, cluster, word)
        assert done.returncode == 2
        assert "openforge did not make" in done.stderr
    monkeypatch.undo()
    assert kind.status(cluster.name).state == "ready"


def test_a_run_without_its_cluster_says_how_to_get_one(tmp_path: Path, cluster: kind.Cluster) -> None:
    absent = kind.Cluster("openforge-none", "absent", cluster.kubeconfig)
    done = typed(tmp_path, absent, "harness", "check", "react")
    assert done.returncode == 3
    assert "openforge up" in done.stderr


@pytest.mark.parametrize("retain", [False, True])
def test_a_node_that_does_not_come_up_leaves_its_logs(tmp_path: Path, cluster: kind.Cluster, retain: bool) -> None:
    name = f"{cluster.name}-broken"
    never = replace(cluster, name=name)
    image = "openforge/not-a-node:test"
    (tmp_path / "Dockerfile").write_text(f'FROM {ensure_base(print)}\nCMD ["sh", "-c", "echo I am no node; exit 3"]\n')
    docker.build(image, tmp_path, kind="test", say=print)
    more = ["--retain"] if retain else []
    done = typed(tmp_path, never, "up", "--set", f"target.node_image={image}", *more)
    try:
        assert done.returncode == 3
        [logs] = re.findall(r"next: see (\S+-broken\.logs)", done.stderr)
        assert "I am no node" in "".join(path.read_text() for path in Path(logs).rglob("*.log"))
        assert kind.status(name).state == ("broken" if retain else "absent")
    finally:
        assert typed(tmp_path, never, "down").returncode == 0
    assert kind.status(name).state == "absent"
