"""Images of sandboxes and harnesses, each named by the hash of all that goes into it: a name that is there is right.

Three layers, each on the one before: Debian (`base`), what every sandbox has (`sandbox`), one harness (`harness`). A
harness comes from the folder that the process runtime installs, so both run the same bytes. Images of tasks are made in
task_image.py.
"""

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster import docker
from cluster.base_image import ensure_base
from cluster.install import Installed
from cluster.recorder_image import gather
from openforge.cache import cache_dir
from openforge.errors import InfraError
from openforge.harness import HarnessManifest
from openforge.program import run_program

VERSIONS = "dev.openforge.versions"
"""Label: every pinned package of an image, `NAME=VERSION` with blanks between."""

ENTRY = ("/opt/openforge/bin/python3",)
"""The Python of the pod's agent, which starts in any image: it has a loader and libraries of its own."""

SANDBOX_FOLDER = Path(__file__).parent / "sandbox_image"
"""The Dockerfiles of sandboxes."""

RECORDER_ENTRY = (
    *("/opt/recorder/lib/loader", "--library-path", "/opt/recorder/lib"),
    "/opt/recorder/python/bin/python",
)
"""The same for the Python of a recorder's image; its sources are below /opt/recorder/src."""

_RECORDER_FOLDER = Path(__file__).parent / "recorder_image"
_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = (
    "cluster/runtimes/pod_agent.py",
    "cluster/runtimes/pod_words.py",
    "cluster/runtimes/pod_protocol.py",
    "cluster/runtimes/pod_image.py",
    "cluster/runtimes/untrusted_client.py",
    "cluster/worktree.py",
    "cluster/beneath.py",
    "cluster/runtimes/folders.py",
    "openforge/program.py",
    "openforge/errors.py",
    "openforge/__init__.py",
    "cluster/__init__.py",
    "cluster/runtimes/__init__.py",
)


@dataclass(frozen=True)
class Image:
    """One image of ours that is here."""

    name: str
    kind: str
    size_bytes: int
    created: str
    versions: str


def sandbox_name() -> str:
    """What the sandbox image is called, built or not. It is named by what is ours of it, not by the day's Debian."""
    files = [*_agent_files(), SANDBOX_FOLDER / "Dockerfile"]
    parts = (f"{path.relative_to(_ROOT)} ".encode() + path.read_bytes() for path in files)
    return f"openforge/sandbox:{short_hash(*parts)}"


def harness_name(manifest: HarnessManifest) -> str:
    """What a harness's image is called, built or not."""
    return f"openforge/harness-{manifest.name}:{short_hash(sandbox_name(), manifest.content_hash())}"


def ensure_sandbox(say: docker.Say) -> str:
    """What every sandbox stands on; its name."""
    base, name = ensure_base(say), sandbox_name()
    if docker.image(name) is not None:
        return name
    with context_folder() as context:
        shutil.copyfile(SANDBOX_FOLDER / "Dockerfile", context / "Dockerfile")
        _lay(_agent_files(), context / "agent")
        words = f"{' '.join(ENTRY)} -I /opt/openforge/agent/cluster/runtimes/pod_words.py"
        _program(context / "untrusted", f'#!/opt/openforge/bin/bash\nexec {words} ask-untrusted "$@"\n')
        build(name, context, "sandbox", say, {"BASE": base}, ())
    return name


def ensure_harness(manifest: HarnessManifest, installed: Installed, say: docker.Say) -> str:
    """The image of one harness; its name. InfraError."""
    sandbox, name = ensure_sandbox(say), harness_name(manifest)
    if docker.image(name) is not None:
        return name
    with context_folder() as context:
        shutil.copyfile(manifest.root / "Dockerfile", context / "Dockerfile")
        _link_tree(installed.root, context / "harness")
        if installed.node is not None:
            _link_tree(installed.node, context / "node")
        build(name, context, "harness", say, {"SANDBOX": sandbox}, npm_versions(installed))
    return name


def recorder_name() -> str:
    """What the image of a recorder that runs in a cluster is called, built or not."""
    files = [*_recorder_files(), _RECORDER_FOLDER / "Dockerfile", _RECORDER_FOLDER / "gather.py"]
    sources = (f"{path.relative_to(_ROOT)} ".encode() + path.read_bytes() for path in files)
    return f"openforge/recorder:{short_hash(platform.machine(), *gather.versions(), *sources)}"


def ensure_recorder(say: docker.Say) -> str:
    """The image of a recorder; its name. InfraError."""
    base, name = ensure_base(say), recorder_name()
    if docker.image(name) is not None:
        return name
    with context_folder() as context:
        shutil.copyfile(_RECORDER_FOLDER / "Dockerfile", context / "Dockerfile")
        gather.gather(context / "recorder")
        _lay(_recorder_files(), context / "recorder" / "src")
        build(name, context, "recorder", say, {"BASE": base}, gather.versions())
    return name


def _recorder_files() -> list[Path]:
    folders = (path for name in ("openforge", "proxy_addons") for path in (_ROOT / name).rglob("*.py"))
    return sorted([*folders, *(_ROOT / "cluster" / name for name in ("__init__.py", "recorder_link.py"))])


def _lay(sources: Iterable[Path], folder: Path) -> None:
    """Files of this checkout, under the names that they have in it."""
    for path in sources:
        target = folder / path.relative_to(_ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def list_images() -> list[Image]:
    """Every image of ours, newest first."""
    told = docker.docker(
        *("images", "--filter", f"label={docker.OWNED}", "--format", "{{.Repository}}:{{.Tag}}"), step="listing images"
    )
    found = [(name, docker.image(name)) for name in told.split() if not name.endswith(":<none>")]
    images = [_describe(name, image) for name, image in found if image is not None]
    return sorted(images, key=lambda image: image.created, reverse=True)


def age(created: str) -> str:
    """How long ago an image was made, `3 d`, from docker's own time."""
    seconds = max((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds(), 0.0)  # a clock may be set back
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _describe(name: str, image: dict[str, Any]) -> Image:
    labels = image["Config"].get("Labels") or {}
    return Image(name, labels.get(docker.OWNED, ""), image["Size"], image["Created"], labels.get(VERSIONS, ""))


def is_old(image: Image, wanted: Collection[str]) -> bool:
    """Whether an image can go, when these are wanted; the base, which is in all, cannot."""
    return image.name not in wanted and image.kind in ("sandbox", "harness", "task", "recorder", "node")


def remove_old(wanted: Collection[str], say: docker.Say) -> list[str]:
    """Remove images of ours that are in no use and not wanted; what is gone."""
    gone = []
    for image in list_images():
        if is_old(image, wanted):
            try:
                docker.docker("image", "rm", image.name, step=f"removing {image.name}")
            except InfraError as error:
                say(f"{image.name} stays: {error.summary.splitlines()[-1]}")
                continue
            gone.append(image.name)
    return gone


def _agent_files() -> list[Path]:
    return [_ROOT / name for name in _SOURCES]


def build(
    name: str, context: Path, kind: str, say: docker.Say, arguments: dict[str, str], versions: Iterable[str]
) -> None:
    """Build, ask the image what Debian packages it holds, and name it once its label says all versions."""
    unlabelled = f"{name}-unlabelled"
    docker.build(unlabelled, context, kind=kind, say=say, arguments=arguments)
    asked = ["run", "--rm", "--network", "none", "--entrypoint", "dpkg-query", unlabelled, "-W"]
    try:
        told = docker.docker(*asked, "-f", "${Package}=${Version} ", step=f"asking {name} for its packages").split()
    except InfraError:
        told = []  # not a Debian
    with tempfile.TemporaryDirectory(prefix="openforge-label-") as folder:
        Path(folder, "Dockerfile").write_text(f"FROM {unlabelled}\n")
        labels = {VERSIONS: " ".join([*versions, *told])}
        docker.build(name, Path(folder), kind=kind, say=lambda text: None, labels=labels)
    docker.docker("image", "rm", "--no-prune", unlabelled, step="naming the image")


def npm_versions(installed: Installed) -> list[str]:
    """The packages of a harness and its node, `NAME=VERSION`."""
    versions = []
    for folder in filter(None, (installed.root, installed.node and installed.node.parent.parent)):
        lock = folder / "node_modules" / ".package-lock.json"
        if lock.is_file():
            packages = json.loads(lock.read_bytes())["packages"]
            versions += [f"{path.rpartition('node_modules/')[2]}={told['version']}" for path, told in packages.items()]
    return versions


@contextmanager
def context_folder() -> Iterator[Path]:
    """An empty folder on the cache's file system, so that what is installed can be linked into it."""
    place = cache_dir() / "contexts"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="context-", dir=place) as folder:
        yield Path(folder)


def _link_tree(source: Path, target: Path) -> None:
    """The folder again, its files as hard links where that is possible."""
    try:
        run_program(["cp", "-al", str(source), str(target)], step=f"gathering {source.name}")
    except InfraError:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def short_hash(*parts: str | bytes) -> str:
    """12 hex characters over the parts and where each ends."""
    digest = hashlib.blake2b(digest_size=6)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
