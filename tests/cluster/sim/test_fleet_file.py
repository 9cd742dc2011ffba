"""A fleet file: what is wrong with it is said with its key."""

from pathlib import Path

import pytest

from cluster.sim import kwok
from cluster.sim.fleet_file import DEFAULT, read_fleet
from openforge.errors import ConfigError

NODES = '[[nodes]]\nname = "cpu"\ncount = 2\n'


def test_ours_can_be_read_and_makes_its_nodes() -> None:
    fleet = read_fleet(DEFAULT)
    [group] = fleet.nodes
    assert group.names()[:2] == ["cpu-000", "cpu-001"]
    node = kwok.node("cpu-000", group)
    assert node["status"]["allocatable"] == {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    running = next(stage for stage in kwok.configuration(fleet) if stage.get("metadata") == {"name": "pod-running"})
    assert running["spec"]["delay"] == {"durationMilliseconds": 500, "jitterDurationMilliseconds": 2000}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version = 1\n", "nodes"),
        ("version = 1\nnodes = 3\n", "nodes: Input should be an array"),
        (NODES, "version"),
        (f"version = 1\n{NODES}{NODES}", "same name"),
        (f"version = 1\n{NODES}[pods]\nstart_s = [2.0, 1.0]\n", "shortest"),
        (f"version = 1\n{NODES}[pods]\nstarts = [2.0, 1.0]\n", "pods.starts"),
        (f'version = 1\n{NODES}[[faults]]\nkind = "fire"\nat_s = 1\n', "faults.0.kind"),
        (f'version = 1\n{NODES}[[faults]]\nkind = "evict"\nat_s = 1\nshare = 2.0\n', "faults.0.share"),
        ("version = 1\n[[nodes]\n", "line 2"),
    ],
)
def test_a_fault_is_named_with_its_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_fleet(path)
    assert told in raised.value.summary
    assert str(path) in raised.value.summary


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        read_fleet(tmp_path / "nowhere.toml")
