"""What images are called, and what kind and the node image are told, without Docker."""

from pathlib import Path

import pytest

from cluster import images, kind
from cluster.node_image import build
from openforge.harness import load_harness


def test_k22_an_image_is_named_by_all_that_goes_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    react = load_harness("react")
    before = images.harness_name(react)
    assert before == images.harness_name(load_harness("react"))
    assert before != images.harness_name(load_harness("pi")).replace("-pi:", "-react:")
    folder = tmp_path / "react"
    folder.mkdir()
    for file in react.root.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    assert images.harness_name(load_harness(str(folder))) == before
    (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text() + "RUN true\n")
    assert images.harness_name(load_harness(str(folder))) != before
    monkeypatch.setattr(images, "_SOURCES", images._SOURCES[1:])  # another agent is another sandbox, so another harness
    assert images.harness_name(react) != before


def test_every_file_that_the_pods_agent_needs_is_in_the_image() -> None:
    for name in images._SOURCES:
        assert (images._ROOT / name).is_file()
    words = (images._ROOT / "cluster/runtimes/pod_words.py").read_text()
    modules = ("cluster.beneath", "cluster.worktree", "cluster.runtimes.untrusted_client", "cluster.runtimes.pod_image")
    for module in modules:
        assert module in words
        assert f"{module.replace('.', '/')}.py" in images._SOURCES


def test_our_own_node_is_told_what_it_carries_and_kinds_is_left_alone() -> None:
    own, theirs = kind.cluster_config(True), kind.cluster_config(False)
    assert build.COREDNS in str(own["kubeadmConfigPatches"])
    assert build.ETCD in str(own["kubeadmConfigPatches"])
    assert "cgroupfs" in str(own["kubeadmConfigPatches"])
    assert "networking" not in theirs
    assert "imageTag" not in str(theirs)
    assert "cgroup" not in str(theirs)


def test_versions_are_those_of_go_mod() -> None:
    assert build.KUBERNETES.startswith("v1.")
    assert build.node_image().startswith(f"openforge/node:{build.KUBERNETES}-")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (" • Preparing nodes 📦   ...", ["kind: Preparing nodes"]),
        (" ✓ Preparing nodes 📦 ", []),
        ("ERROR: failed to create cluster: x", ["kind: ERROR: failed to create cluster: x"]),
        ("Have a nice day! 👋", []),
    ],
)
def test_kinds_steps_are_told_without_ornaments(line: str, said: list[str]) -> None:
    heard: list[str] = []
    kind._tell(line, heard.append)
    assert heard == said


def test_an_image_from_a_clock_that_is_ahead_is_new() -> None:
    assert images.age("2096-01-01T00:00:00Z") == "0 s"
