"""Images of tasks that bring their own: what the task's Dockerfile makes, then the pod's agent and a harness on top.

The folder `environment/` is the context, as in Harbor. Each image is named by the hash of all that is the task's and
ours of it; what a `FROM` or a package list stands for on the day is not part of that.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cluster import docker
from cluster.images import (
    SANDBOX_FOLDER,
    build,
    context_folder,
    ensure_harness,
    harness_name,
    npm_versions,
    recorder_name,
    sandbox_name,
    short_hash,
)
from cluster.install import Installed, install
from cluster.node_image.build import node_image
from openforge.config.models import Run
from openforge.errors import InfraError
from openforge.harness import HarnessManifest, harness_roots, list_harnesses, load_harness
from openforge.task import Task, load_tasks

_LAYER = SANDBOX_FOLDER / "task.Dockerfile"
_TAKEN = (
    *("/dev", "/proc", "/sys", "/etc", "/tmp", "/run", "/home/agent", "/tests", "/orig", "/logs"),
    *("/opt/openforge", "/opt/harness", "/opt/node", "/opt/task"),
)
"""Places where a pod has something of its own."""


@dataclass(frozen=True)
class RolloutImage:
    """What a rollout's pod is made of. `env` is the image's own environment, which our variables come on top of."""

    name: str
    work: str = "/app"
    env: Mapping[str, str] = field(default_factory=dict)


def own_name(task: Task) -> str:
    """What the image of a task's Dockerfile is called, built or not."""
    assert task.dockerfile is not None
    return f"openforge/task-{_plain(task.name)}:{short_hash(*_parts(task.dockerfile.parent))}"


def task_name(task: Task, manifest: HarnessManifest) -> str:
    """What the image of a task with a harness on top is called, built or not."""
    name = f"openforge/task-{_plain(task.name)}-{_plain(manifest.name)}"
    return f"{name}:{short_hash(own_name(task), harness_name(manifest), _LAYER.read_bytes())}"


def ensure_task(task: Task, manifest: HarnessManifest, installed: Installed, say: docker.Say) -> RolloutImage:
    """The image of a task with a harness, made if it is not there. InfraError that names the task."""
    name, own = task_name(task, manifest), own_name(task)
    if docker.image(name) is None:
        harness = ensure_harness(manifest, installed, say)
        _build_own(task, own, say)
        work = work_folder(task, own)
        arguments = {"TASK": own, "HARNESS": harness, "OPENFORGE_WORK": work}
        with context_folder() as context:
            shutil.copyfile(_LAYER, context / "Dockerfile")
            build(name, context, "task", say, arguments, npm_versions(installed))
    return RolloutImage(name, work_folder(task, name), environment(name))


def run_images(run: Run, project: Path, say: docker.Say) -> list[tuple[Task | None, str, str]]:
    """Every image that a run needs, made where it is not there: the task that it is for (None: all that bring none),
    the harness, the image's name. InfraError."""
    made: list[tuple[Task | None, str, str]] = []
    own = [task for task in load_tasks(run.tasks) if task.dockerfile]
    for name in run.harnesses:
        manifest = load_harness(name, harness_roots(project))
        installed = install(manifest, say)
        made.append((None, name, ensure_harness(manifest, installed, say)))
        made += [(task, name, ensure_task(task, manifest, installed, say).name) for task in own]
    return made


def wanted_images(run: Run, project: Path) -> set[str]:
    """All that this version makes for a project's harnesses and for the run's tasks, built or not."""
    roots = harness_roots(project)
    harnesses = [load_harness(name, roots) for name in list_harnesses(roots)]
    own = [task for task in load_tasks(run.tasks) if task.dockerfile]
    return {
        *(node_image(), sandbox_name(), recorder_name()),
        *map(harness_name, harnesses),
        *map(own_name, own),
        *(task_name(task, harness) for task in own for harness in harnesses),
    }


def work_folder(task: Task, image: str) -> str:
    """Where the agent works: the image's WORKDIR, or /app. InfraError where a pod cannot have a folder of its own."""
    work = PurePosixPath(_config(image).get("WorkingDir") or "/app")
    if any(work.is_relative_to(place) or PurePosixPath(place).is_relative_to(work) for place in _TAKEN):
        raise InfraError(
            f"the image of {task.ref} has WORKDIR {work}, where a pod has folders of its own",
            hint="WORKDIR /app in its environment/Dockerfile",
        )
    return str(work)


def environment(image: str) -> dict[str, str]:
    """What the image sets (ENV)."""
    listed = _config(image).get("Env") or []
    return dict(entry.split("=", 1) for entry in listed if "=" in entry)


def _build_own(task: Task, name: str, say: docker.Say) -> None:
    assert task.dockerfile is not None
    folder = task.dockerfile.parent
    if composed := sorted(path.name for path in folder.glob("docker-compose*.y*ml")):
        raise InfraError(
            f"{task.ref} is made of several containers ({composed[0]}), and a rollout has one",
            hint="leave it out, or let its Dockerfile hold everything",
        )
    if docker.image(name) is not None:
        return
    try:
        build(name, folder, "task", say, {}, ())
    except InfraError as error:
        why = _from_last_step(error.summary)
        raise InfraError(
            f"the image of {task.ref} cannot be built from its environment/Dockerfile: {why}",
            hint=error.hint or f"docker build {folder}",
        ) from error


def _from_last_step(summary: str) -> str:
    """What docker said, without its colours and without the steps that went well."""
    head, *lines = re.sub(r"\x1b\[[0-9;]*m", "", summary).splitlines()
    steps = [number for number, line in enumerate(lines) if line.startswith("Step ")]
    return "\n".join([head, *lines[steps[-1] if steps else 0 :]])


def _config(image: str) -> dict[str, Any]:
    found = docker.image(image)
    if found is None:
        raise InfraError(f"image {image} is gone", hint="try again: it is built anew")
    config: dict[str, Any] = found["Config"]
    return config


def _plain(name: str) -> str:
    """A name as docker takes one: no two separators in a row, none at an end."""
    return "-".join(filter(None, name.replace("_", "-").split("-")))


def _parts(folder: Path) -> Iterator[str | bytes]:
    """Every path with its mode and its bytes, or where it leads."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files + [name for name in folders if os.path.islink(os.path.join(place, name))]):
            path = Path(place, name)
            mode = path.lstat().st_mode
            yield f"{path.relative_to(folder)} {stat.S_IMODE(mode):o}"
            yield os.fsencode(path.readlink()) if stat.S_ISLNK(mode) else path.read_bytes()
