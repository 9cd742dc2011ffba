"""The parts of the overview, as far as they are plain functions of what is there."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cluster import docker, images
from openforge.config import Loaded, load
from openforge.errors import InfraError
from openforge_tui.overview import (
    Part,
    Row,
    asked,
    disk_rows,
    harness_rows,
    image_rows,
    live_rows,
    machine_rows,
    node_row,
    policy_rows,
    size_of,
)

NODE = {
    "metadata": {"name": "openforge-control-plane"},
    "status": {
        "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "2", "memory": "16Gi", "pods": "250"},
        "nodeInfo": {"kubeletVersion": "v1.36.1"},
    },
}


def test_a_node_says_what_room_it_has_and_whether_it_is_ready() -> None:
    row = node_row(NODE)
    assert (row["name"], row["state"]) == ("node openforge-control-plane", "ok")
    assert row["found"] == "2 cores, 16.0 GiB memory, 250 pods; kubelet v1.36.1"
    status = {**NODE["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}
    assert node_row({**NODE, "status": status})["found"].startswith("not ready; ")


def test_a_file_under_two_names_takes_its_place_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(os.urandom(1 << 16))
    alone = size_of(tmp_path)
    os.link(tmp_path / "one", tmp_path / "other")
    assert size_of(tmp_path) == alone
    assert alone >= 1 << 16
    assert size_of(tmp_path / "none") == 0


def test_a_part_that_fails_is_a_row_with_its_hint(tmp_path: Path) -> None:
    def refuse(load: object) -> list[Row]:
        raise InfraError("docker went away", hint="openforge doctor")

    [row] = asked(Part("images", 1.0, refuse), lambda target: load(tmp_path, target, env={}))
    assert (row["part"], row["state"], row["found"], row["next"]) == (
        *("images", "missing", "docker went away"),
        "openforge doctor",
    )


@pytest.fixture
def loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))

    def loading(target: str | None) -> Loaded:
        return load(tmp_path, target, env={})

    return loading


def test_disk_is_told_of_folders_that_are_not_there_yet(loading) -> None:
    assert [row["name"] for row in disk_rows(loading)] == ["store", "cache"]


def test_every_harness_is_listed_with_what_installs_it_and_a_wrong_one_hides_none(loading, tmp_path: Path) -> None:
    (tmp_path / "harness_images" / "mine").mkdir(parents=True)
    (tmp_path / "harness_images" / "mine" / "harness.toml").write_text("name = 1")
    (tmp_path / "openforge.toml").write_text('version = 1\n[run]\nharnesses = ["pi", "nowhere"]\n')
    rows = {row["name"]: row for row in harness_rows(loading)}
    assert set(rows) == {"codex", "mine", "pi", "react"}
    assert (rows["react"]["state"], rows["react"]["next"]) == ("ok", "")
    assert rows["react"]["found"].endswith(", comes with OpenForge")
    assert (rows["pi"]["state"], rows["pi"]["next"]) == ("note", "openforge harness install pi")
    assert rows["pi"]["found"].endswith(", not installed (npm); this configuration's")
    assert (rows["mine"]["state"], "harness.toml" in rows["mine"]["found"]) == ("note", True)
    told = {row["name"]: row["state"] for row in machine_rows(loading) if row["name"].startswith("harness")}
    assert told == {"harness nowhere": "missing"}


def test_each_recorder_of_a_run_is_a_row(loading, monkeypatch) -> None:
    recorders = [
        {"shard": 0, "state": "up", "up_s": 200.0, "starts": 1},
        {"shard": 1, "state": "up", "up_s": 3.0, "starts": 2},
        {"shard": 2, "state": "down", "up_s": None, "starts": 1},
    ]
    calls = [{"shard": 0}, {"shard": 0}, {"shard": 1}]
    told = {"run_id": "r1", "rollouts": {"running": 3}, "calls": calls, "isolation": "pod", "recorders": recorders}

    async def ask_all(store_root: Path) -> list[Row]:
        return [told]

    monkeypatch.setattr("openforge_tui.live_status.ask_all", ask_all)
    assert [(row["name"], row["state"], row["found"]) for row in live_rows(loading)] == [
        ("r1", "ok", "3 running; 3 model calls in flight; sandbox pod"),
        ("recorder 0", "ok", "up for 3 min 20 s; 2 model calls in flight"),
        ("recorder 1", "ok", "up for 3 s, started 2 times; 1 model call in flight"),
        ("recorder 2", "note", "down; the next attempt on this shard starts it again"),
    ]


def test_policies_and_their_servers_are_listed_dead_ones_included(loading, tmp_path: Path) -> None:
    servers = tmp_path / "cache" / "servers"
    servers.mkdir(parents=True)
    ticks = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    alive = f'{{"pid": {os.getpid()}, "start_ticks": {ticks}, "port": 4001, "keep": true, "model": "starter-1"}}'
    (servers / "a.json").write_text(alive)
    (servers / "b.json").write_text('{"pid": 999999, "start_ticks": 1, "port": 4002, "keep": false}')
    (servers / "c.json").write_text("{half")
    rows = policy_rows(loading)
    by_name = {row["name"]: row for row in rows}
    assert by_name["starter"]["next"] == "openforge policy make starter"
    told = [row["found"] for row in rows if row["name"] == "server"]
    assert told == [
        f"starter-1 on port 4001, process {os.getpid()}; stays until it is stopped",
        "port 4002, process 999999 died; the next run starts another",
    ]


def test_images_that_no_run_needs_are_one_row_with_the_command_that_removes_them(
    loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        images.Image(images.sandbox_name(), "sandbox", 500 << 20, datetime.now(UTC).isoformat(), ""),
        images.Image("openforge/base:bookworm", "base", 190 << 20, "2026-11-01T00:00:00+00:00", ""),
        images.Image("openforge/sandbox:0", "sandbox", 1 << 30, "2026-11-01T00:00:00+00:00", ""),
        images.Image("openforge/task-gone:1", "task", 1 << 29, "2026-11-01T00:00:00+00:00", ""),
    ]
    monkeypatch.setattr(docker, "problem", lambda: "")
    monkeypatch.setattr(images, "list_images", lambda: made)
    used, base, old = image_rows(loading)
    assert (used["name"], used["state"]) == (images.sandbox_name(), "ok")
    assert used["found"].startswith("sandbox, 500 MiB, ")
    assert base["name"] == "openforge/base:bookworm"
    assert (old["found"], old["next"]) == ("2, in no use by this version; up to 1.5 GiB", "openforge images prune")
