"""Makes the start files of a task in a sandbox folder, and keeps the untouched copy that the verifier compares with.

The files depend on the task and the seed only: setup runs without network, with a clean environment, at fixed paths.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from cluster.beneath import copy_beneath
from cluster.grading import base_env
from cluster.runtimes.base import Exit, Limits, Mount, Runner, Spec
from cluster.worktree import copy_tree
from openforge.config.models import Sandbox, size_bytes
from openforge.errors import InfraError
from openforge.task import Task

SETUP_S = 120.0


@dataclass(frozen=True)
class Workspace:
    """`folder/work` is the agent's, `orig` the untouched copy; both end with `remove`."""

    runtime: Runner
    folder: Path
    orig: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def remove(self) -> None:
        self.runtime.remove_folder(self.orig.parent)
        self.runtime.remove_folder(self.folder)


def limits(sandbox: Sandbox, wall_s: float) -> Limits:
    """The configured limits of a sandbox, with a time limit."""
    return Limits(
        wall_s=wall_s,
        cpu_s=sandbox.cpu_seconds,
        memory_bytes=size_bytes(sandbox.memory),
        disk_bytes=size_bytes(sandbox.disk),
        open_files=sandbox.open_files,
    )


async def make_workspace(runtime: Runner, task: Task, seed: int, sandbox: Sandbox, log: Path) -> Workspace:
    """Run the task's setup with `OPENFORGE_SEED`. InfraError when it fails: start files are ours, not the agent's."""
    folder, keep = runtime.new_folder(), runtime.new_folder()
    workspace = Workspace(runtime, folder, keep / "orig")
    try:
        if task.setup is not None:
            environment = {"OPENFORGE_SEED": str(seed)}
            ended = await run_script(runtime, task.setup, folder, environment, limits(sandbox, SETUP_S), log)
            if ended.code != 0:
                raise InfraError(f"setup of {task.ref} failed: {ended.detail or f'exit code {ended.code}'}; see {log}")
        copy_tree(folder / "work", workspace.orig)
        runtime.own(workspace.orig)
    except BaseException:
        workspace.remove()
        raise
    return workspace


@dataclass
class _Made:
    """Start files that exist or are being made; `users` copy from them now."""

    making: asyncio.Task[Workspace]
    users: int = 0


class StartFiles:
    """Start files by task and seed, made once and copied: rollouts of a group all begin from the same."""

    def __init__(self, runtime: Runner, keep: int = 64) -> None:
        self._runtime, self._keep = runtime, keep
        self._made: OrderedDict[tuple[str, int], _Made] = OrderedDict()

    async def workspace(self, task: Task, seed: int, sandbox: Sandbox, log: Path) -> Workspace:
        """A workspace of its own. InfraError when the setup fails; the next who asks tries again."""
        key = (task.content_hash(), seed)
        made = self._made.get(key)
        if made is None:
            making = asyncio.create_task(make_workspace(self._runtime, task, seed, sandbox, log))
            made = self._made[key] = _Made(making)
        self._made.move_to_end(key)
        made.users += 1
        try:
            first = await asyncio.shield(made.making)
            return await asyncio.to_thread(self._copy, first)
        except BaseException:
            if made.making.done() and (made.making.cancelled() or made.making.exception()):
                self._made.pop(key, None)
            raise
        finally:
            made.users -= 1
            self._forget()

    def _copy(self, first: Workspace) -> Workspace:
        folder, keep = self._runtime.new_folder(), self._runtime.new_folder()
        workspace = Workspace(self._runtime, folder, keep / "orig")
        try:
            for source, target in ((first.folder, folder), (first.orig, workspace.orig)):  # setup may write to ~ too
                copy_tree(source, target)
                self._runtime.own(target)
        except BaseException:
            workspace.remove()
            raise
        return workspace

    def _forget(self) -> None:
        """Remove what was not asked for longest, down to what is to be kept."""
        idle = [key for key, made in self._made.items() if not made.users and made.making.done()]
        for key in idle[: max(0, len(self._made) - self._keep)]:
            self._made.pop(key).making.result().remove()

    async def close(self) -> None:
        """Remove what is kept; nobody may be using it any more."""
        for made in self._made.values():
            made.making.cancel()
        for done in await asyncio.gather(*(made.making for made in self._made.values()), return_exceptions=True):
            if isinstance(done, Workspace):
                done.remove()
        self._made.clear()


async def run_script(
    runtime: Runner, script: Path, folder: Path, env: dict[str, str], bounds: Limits, log: Path
) -> Exit:
    """Run a bash script of the task in the work folder, without network. It sees the folder it stands in, read-only."""
    layout = runtime.layout(folder)
    isolated = runtime.enforced.isolation == "bubblewrap"
    inside = f"/opt/task/{script.name}" if isolated else str(script)
    mounts = (Mount(script.parent, "/opt/task"),) if isolated else ()
    full = {**base_env(layout.path, layout.home, layout.temp), **env}
    return await runtime.run(Spec(("bash", inside), full, folder, bounds, mounts, log=log))


def place_skills(task: Task, work: Path, skills_dir: str) -> None:
    """Copy the task's skill folders to where this harness lists skills from, unless they are there already.

    InfraError when the start files lead out of the work folder.
    """
    for skill in task.skills:
        copy_beneath(work, skill, f"{skills_dir}/{Path(skill).name}")
