"""A kind cluster of our own on this machine: up, down, what it is now. Only clusters that were made here are touched.

A small file beside the cluster's kubeconfig says which container is ours; a cluster of the same name that it does not
name belongs to someone else. The file is written before the cluster is made, so that one cut off half-way is known for
what it is and made anew.
"""

import ipaddress
import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster import docker
from cluster.node_image import build
from openforge.cache import cache_dir, locked
from openforge.errors import InfraError, OpenForgeError, UsageError
from openforge.program import run_program

_CREATE_S, _QUICK_S, _READY_S = 900.0, 120.0, 180.0
_NETWORK = "kind"
_PULL_FAILED = "failed to pull image"


@dataclass(frozen=True)
class Cluster:
    """A cluster of ours. `state` is `ready`, `stopped`, `broken` (half made) or `absent`."""

    name: str
    state: str
    kubeconfig: Path
    node_image: str = ""
    container: str = ""

    @property
    def context(self) -> str:
        return f"kind-{self.name}"


@dataclass(frozen=True)
class _Note:
    """What is remembered of a cluster: the node's container, empty until it is whole."""

    node_image: str
    container: str = ""


def up(name: str, say: docker.Say, *, node_image: str = "", retain: bool = False) -> Cluster:
    """Make the cluster, start it again, or find it ready. InfraError; UsageError when it is someone else's.

    `node_image`: this one. Empty: the one built here if it is there, else kind's own, else build one. `retain`: a node
    that did not come up stays, for its logs.
    """
    docker.require()
    with locked(_file(name, "lock")):
        found = status(name)
        if found.state == "stopped":
            say(f"docker start {_node(name)}")
            docker.docker("start", _node(name), step=f"starting {name}")
            _wait_ready(found, say)
            return status(name)
        if found.state == "ready":
            _wait_ready(found, say)
            return found
        if found.state == "broken":
            say(f"cluster {name} is half made: it is removed and made anew")
            _delete(name, say)
        chosen = node_image or (build.node_image() if docker.image(build.node_image()) else "")
        try:
            _create(name, chosen, say, retain)
        except InfraError as error:
            if chosen or _PULL_FAILED not in error.summary:
                raise
            say("kind's own node image is not to be had here: one is built from packages, once, in about 12 minutes")
            _create(name, build.ensure_node_image(say), say, retain)
        made = status(name)
        _wait_ready(made, say)
        return made


def down(name: str, say: docker.Say) -> bool:
    """Remove the cluster with all that is in it; False when there is none. UsageError when it is someone else's."""
    docker.require()
    with locked(_file(name, "lock")):
        if status(name).state == "absent":
            return False
        _delete(name, say)
        return True


def status(name: str) -> Cluster:
    """What is there now. UsageError when a cluster of that name was not made here."""
    kubeconfig, note = _file(name, "kubeconfig"), _read(name)
    node = _container(name)
    if node is None:
        return Cluster(name, "broken" if note and not note.container else "absent", kubeconfig)
    if note is None or (note.container and note.container != node["Id"]):
        raise UsageError(
            f"there is a kind cluster {name!r} that openforge did not make, and it stays as it is",
            hint='choose another name: [target.kind] cluster = "…" in openforge.toml',
        )
    state = "broken" if not note.container else "ready" if node["State"]["Running"] else "stopped"
    return Cluster(name, state, kubeconfig, note.node_image, node["Id"])


def host_address() -> str:
    """The address of this machine that pods of a kind cluster can reach: the gateway of docker's network for kind."""
    told = docker.docker(
        *("network", "inspect", _NETWORK, "--format", "{{json .IPAM.Config}}"), step="asking for kind's network"
    )
    for entry in json.loads(told) or ():
        gateway = entry.get("Gateway")
        if gateway and ipaddress.ip_address(gateway).version == 4:
            return str(gateway)
    raise InfraError("docker's network for kind has no IPv4 gateway", hint="docker network inspect kind")


def load(cluster: Cluster, images: list[str], say: docker.Say) -> list[str]:
    """Bring images into the node's containerd, but for those that are there; the names that were loaded."""
    there = set(
        docker.docker(
            *("exec", _node(cluster.name), "ctr", "--namespace", "k8s.io", "images", "list", "--quiet"),
            step="listing the node's images",
        ).split()
    )
    missing = [name for name in dict.fromkeys(images) if f"docker.io/{name}" not in there and name not in there]
    if missing:
        say(f"docker save {' '.join(missing)} | ctr images import (in {_node(cluster.name)})")
        with tempfile.TemporaryDirectory(prefix="openforge-load-") as folder:
            archive = Path(folder, "images.tar")
            docker.docker("save", "--output", str(archive), *missing, step="packing images", timeout_s=_CREATE_S)
            run_program(
                [*_kind(), "load", "image-archive", str(archive), "--name", cluster.name],
                step="loading images into the node",
                timeout_s=_CREATE_S,
            )
    return missing


def kubectl(cluster: Cluster, *arguments: str, step: str, timeout_s: float = _QUICK_S) -> str:
    """Run kubectl inside the node, which has one whatever this machine has."""
    base = ("exec", _node(cluster.name), "kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf")
    return docker.docker(*base, *arguments, step=step, timeout_s=timeout_s)


def _create(name: str, image: str, say: docker.Say, retain: bool) -> None:
    kubeconfig = _file(name, "kubeconfig")
    own = image == build.node_image()
    with tempfile.TemporaryDirectory(prefix="openforge-kind-") as folder:
        config = Path(folder, "kind.json")
        config.write_text(json.dumps(cluster_config(own)))
        argv = [*_kind(), "create", "cluster", "--name", name, "--config", str(config)]
        argv += ["--kubeconfig", str(kubeconfig), "--wait", f"{_READY_S:g}s"]
        argv += ["--retain", *(["--image", image] if image else [])]
        _write(name, _Note(image or "kind's own"))
        say(" ".join(argv))
        began = time.monotonic()
        try:
            run_program(argv, step=f"making cluster {name}", timeout_s=_CREATE_S, on_line=lambda line: _tell(line, say))
        except InfraError as error:
            if _container(name) is not None:
                error.hint = f"see {_export_logs(name, say)}"
                if retain:
                    error.hint += "; the node stays until openforge down"
                else:
                    _delete(name, say)
            raise
    node = _container(name)
    assert node is not None
    _write(name, _Note(image or str(node["Config"]["Image"]), node["Id"]))
    say(f"cluster {name} was made in {time.monotonic() - began:.0f} s")


def _export_logs(name: str, say: docker.Say) -> Path:
    """The folder with everything that a node which did not come up has written."""
    folder = _file(name, "logs")
    shutil.rmtree(folder, ignore_errors=True)
    argv = [*_kind(), "export", "logs", str(folder), "--name", name]
    say(" ".join(argv))
    try:
        run_program(argv, step="collecting the node's logs", timeout_s=_QUICK_S)
    except InfraError as error:
        say(f"not all of the logs: {error.summary.splitlines()[-1]}")
    return folder


def cluster_config(own_image: bool) -> dict[str, Any]:
    """kind's configuration. Our own node image differs in its cgroup driver and in which versions it carries."""
    kubelet: dict[str, Any] = {"kind": "KubeletConfiguration", "maxPods": 250, "podPidsLimit": 1024}
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}],
    }
    patches = [kubelet]
    if own_image:
        config["networking"] = {"kubeProxyMode": "nftables"}
        kubelet["cgroupDriver"] = "cgroupfs"
        patches.append(
            {
                "kind": "ClusterConfiguration",
                "dns": {"imageTag": build.COREDNS},
                "etcd": {"local": {"imageTag": build.ETCD}},
            }
        )
    config["kubeadmConfigPatches"] = [json.dumps(patch) for patch in patches]
    return config


def _wait_ready(cluster: Cluster, say: docker.Say) -> None:
    """Wait until the API answers and the node is ready. InfraError."""
    end_s = time.monotonic() + _READY_S
    while True:
        try:
            kubectl(cluster, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s", step="the node")
            kubectl(
                cluster,
                *("--namespace", "kube-system", "rollout", "status", "daemonset", "--timeout=60s"),
                step="the cluster's own pods",
            )
            return
        except OpenForgeError as error:
            if time.monotonic() > end_s:
                raise InfraError(
                    f"cluster {cluster.name} is up but not ready: {error.summary.splitlines()[-1]}",
                    hint=f"docker logs {_node(cluster.name)}; openforge down, then openforge up, makes it anew",
                ) from error
            time.sleep(1)  # the API server is starting: kubectl has nothing to wait on yet


def _delete(name: str, say: docker.Say) -> None:
    kubeconfig = _file(name, "kubeconfig")
    argv = [*_kind(), "delete", "cluster", "--name", name, "--kubeconfig", str(kubeconfig)]
    say(" ".join(argv))
    run_program(argv, step=f"removing cluster {name}", timeout_s=_CREATE_S)
    for suffix in ("kubeconfig", "json"):
        _file(name, suffix).unlink(missing_ok=True)


def _tell(line: str, say: docker.Say) -> None:
    """kind's steps as they begin, without their ornaments, and what it complains of."""
    words = "".join(c for c in line if c.isascii()).strip()
    if (words.endswith("...") and not words.startswith("Could not")) or words.startswith(("ERROR", "WARNING")):
        say(f"kind: {words.removesuffix('...').strip()}")


def _kind() -> list[str]:
    found = build.kind_program()
    if found is None:
        raise InfraError(
            "kind is not on PATH", hint="install kind; or ./just node-image, which builds it and a node image with Go"
        )
    return [str(found)]


def _node(name: str) -> str:
    return f"{name}-control-plane"


def _container(name: str) -> dict[str, Any] | None:
    """What docker says of the cluster's node, or None."""
    told = docker.docker(
        *("ps", "--all", "--no-trunc", "--format", "{{.ID}}"),
        *("--filter", f"label=io.x-k8s.kind.cluster={name}", "--filter", "label=io.x-k8s.kind.role=control-plane"),
        step="looking for the cluster",
    ).split()
    if not told:
        return None
    found: dict[str, Any] = json.loads(docker.docker("inspect", told[0], step="looking at the node"))[0]
    return found


def _file(name: str, suffix: str) -> Path:
    return cache_dir() / "kind" / f"{name}.{suffix}"


def _read(name: str) -> _Note | None:
    try:
        return _Note(**json.loads(_file(name, "json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(name: str, note: _Note) -> None:
    partial = _file(name, "partial")
    partial.write_text(json.dumps(asdict(note)))
    partial.rename(_file(name, "json"))
