"""Builds the node image: `./just node-image`. On a machine that can pull kind's own node image none of this is needed.

Three steps, each left out when its result is there: the programs (Go modules, minutes), the control plane's images
(one static program each) packed into an archive, and the node image that carries the archive. Programs are kept in the
cache by the hash of what they are made from; the image's tag is the hash of everything.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from cluster import docker, go_programs
from cluster.base_image import ensure_base
from openforge.cache import cache_dir
from openforge.program import run_program

_HERE = Path(__file__).parent
_MODULES = _HERE / "programs"
_REGISTRY = "registry.k8s.io"
_PAUSE = "3.10.1"
_FILES = ("Dockerfile", "containerd.toml", "entrypoint", "network-policy.yaml", "pods.conflist", "proxy.Dockerfile")
_KUBE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubeadm", "kubelet", "kubectl")
_PACKAGES = {
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBE},
    "etcd": "go.etcd.io/etcd/server/v3",
    "kind": "sigs.k8s.io/kind",
    "network-policy": "sigs.k8s.io/kube-network-policies/cmd",
    "coredns": "./coredns",
    "pause": "./pause",
}


def version(module: str) -> str:
    """What go.mod pins of a module, such as `v1.34.4` of k8s.io/kubernetes."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)$", (_MODULES / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, module
    return found[1]


KUBERNETES = version("k8s.io/kubernetes")
COREDNS = version("github.com/coredns/coredns")
ETCD = version("go.etcd.io/etcd/server/v3").removeprefix("v")


def node_image() -> str:
    """The name of the node image that these files make."""
    files = [*(_HERE / name for name in _FILES), *sorted(_MODULES.rglob("*"))]
    return f"openforge/node:{KUBERNETES}-{go_programs.content_hash(_HERE, files)}"


def ensure_node_image(say: docker.Say) -> str:
    """Build what is missing; the image's name. InfraError with the step and the end of its output."""
    name = node_image()
    if docker.image(name) is not None:
        return name
    base = ensure_base(say)
    programs = ensure_programs(say)
    with tempfile.TemporaryDirectory(prefix="openforge-node-") as folder:
        context = Path(folder)
        for file in _FILES:
            shutil.copy2(_HERE / file, context / file)
        (context / "bin").mkdir()
        for program in ("kind", "kube-proxy", "kubeadm", "kubectl", "kubelet"):
            shutil.copy2(programs / program, context / "bin" / program)
        (context / "version").write_text(KUBERNETES + "\n")
        proxy = f"{_REGISTRY}/kube-proxy:{KUBERNETES}"
        docker.build(
            proxy, context, kind="node", say=say, dockerfile=context / "proxy.Dockerfile", arguments={"BASE": base}
        )
        parts = _save_control_plane(programs, context, proxy, say)
        docker.build(name, context, kind="node", say=say, arguments={"BASE": base})
        docker.docker("image", "rm", *parts, step="removing what is inside the node image now")
    return name


def kind_program() -> Path | None:
    """kind from PATH, else the one that the node image carries; None where there is neither."""
    if found := shutil.which("kind"):
        return Path(found)
    name = node_image()
    place = cache_dir() / "kind" / f"kind-{name.rpartition('-')[2]}"
    if not place.is_file() and docker.image(name) is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        container = docker.docker("create", name, step="opening the node image").strip()
        try:
            partial = place.with_suffix(f".{os.getpid()}")
            docker.docker("cp", f"{container}:/kind/kind", str(partial), step="taking kind out of the node image")
            partial.rename(place)
        finally:
            docker.docker("rm", container, step="closing the node image")
    return place if place.is_file() else None


def ensure_programs(say: docker.Say) -> Path:
    """The folder with every program: about nine minutes of Go on two cores, once."""
    return go_programs.ensure(_MODULES, _PACKAGES, say, kubernetes=KUBERNETES)


def _save_control_plane(programs: Path, context: Path, proxy: str, say: docker.Say) -> list[str]:
    """The archive of images that kubeadm expects, each but kube-proxy of one static program; their names."""
    images = {
        f"{_REGISTRY}/{name}:{KUBERNETES}": (name, f"/usr/local/bin/{name}")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    } | {
        f"{_REGISTRY}/etcd:{ETCD}": ("etcd", "/usr/local/bin/etcd"),
        f"{_REGISTRY}/coredns/coredns:{COREDNS}": ("coredns", "/coredns"),
        f"{_REGISTRY}/pause:{_PAUSE}": ("pause", "/pause"),
        f"openforge/network-policy:{version('sigs.k8s.io/kube-network-policies')}": ("network-policy", "/agent"),
    }
    for name, (program, place) in images.items():
        say(f"docker import {program} as {name}")
        _import(programs / program, place, name)
    names = [proxy, *images]
    say(f"docker save {len(names)} images")
    docker.docker("save", "--output", str(context / "images.tar"), *names, step="packing the images", timeout_s=600)
    return names


def _import(program: Path, place: str, name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="openforge-image-") as folder:
        root = Path(folder, "root")
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True)
        shutil.copy2(program, target)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        archive = Path(folder, "image.tar")
        run_program(
            ["tar", "-C", str(root), "--owner=0", "--group=0", "-cf", str(archive), "."], step=f"packing {name}"
        )
        docker.docker(
            "import",
            *("--change", f'ENTRYPOINT ["{place}"]'),
            *("--change", "ENV PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin"),
            *("--change", f"LABEL {docker.OWNED}=node"),
            str(archive),
            name,
            step=f"importing {name}",
            timeout_s=600,
        )


if __name__ == "__main__":
    print(ensure_node_image(lambda text: print(text, file=sys.stderr)))
