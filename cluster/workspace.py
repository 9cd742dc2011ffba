"""Makes the start files of a task in a sandbox folder, and keeps the untouched copy that the verifier compares with.

The files depend on the task and the seed only: setup runs without network, with a clean environment, at fixed paths.
"""

from dataclasses import dataclass
from pathlib import Path

from cluster.beneath import copy_beneath
from cluster.grading import base_env
from cluster.runtimes.base import Exit, Limits, Mount, Runtime, Spec
from cluster.worktree import copy_tree
from openforge.config.models import Sandbox, size_bytes
from openforge.errors import InfraError
from openforge.task import Task

SETUP_S = 120.0


@dataclass(frozen=True)
class Workspace:
    """`folder/work` is the agent's, `orig` the untouched copy; both end with `remove`."""

    runtime: Runtime
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


async def make_workspace(runtime: Runtime, task: Task, seed: int, sandbox: Sandbox, log: Path) -> Workspace:
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


async def run_script(
    runtime: Runtime, script: Path, folder: Path, env: dict[str, str], bounds: Limits, log: Path
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
