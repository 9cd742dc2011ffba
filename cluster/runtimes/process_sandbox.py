"""A rollout's sandbox on this machine: folders that the host fills, a command in them, a second sandbox that judges."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from cluster.beneath import write_beneath
from cluster.grading import grade
from cluster.runtimes.base import Exit, Grade, Mount, Order, Runner, Spec
from cluster.states import AttemptError, ErrorClass
from cluster.workspace import StartFiles, Workspace, limits, place_skills
from cluster.worktree import fingerprint
from openforge.errors import InfraError
from openforge.harness import Launch
from openforge.task import Task


class ProcessSandbox:
    """See `cluster.runtimes.base.Sandbox`."""

    def __init__(self, runner: Runner, order: Order, workspace: Workspace) -> None:
        self._runner, self._order, self._workspace = runner, order, workspace
        installed = order.installed
        self.layout = runner.layout(workspace.folder, installed.root, installed.node, order.shard)

    async def run(self, launch: Launch, env: Mapping[str, str], ca: Path) -> Exit:
        order, folder = self._order, self._workspace.folder
        try:
            place_skills(order.task, self._workspace.work, order.harness.spec.skills.dir)
            for path, text in launch.files.items():
                write_beneath(folder / "home", path, text)
        except (InfraError, OSError) as error:
            raise InfraError(f"the start files are unfit: {error}") from error
        certificates = folder / "ca.pem"
        shutil.copyfile(ca, certificates)
        certificates.chmod(0o644)
        self._runner.own(folder)
        tools = self._runner.tools(order.installed.root, order.installed.node)
        mounts = (*tools, Mount(certificates, self.layout.ca))
        bounds = limits(order.settings, order.wall_s)
        spec = Spec(launch.argv, env, folder, bounds, mounts, network=True, shard=order.shard, log=order.log)
        return await self._runner.run(spec)

    async def fingerprint(self) -> str:
        return await asyncio.to_thread(fingerprint, self._workspace.orig)

    async def grade(self) -> Grade:
        order, workspace = self._order, self._workspace
        bounds = limits(order.settings, order.task.verifier_timeout_s)
        return await grade(self._runner, order.task, workspace.work, workspace.orig, order.log, bounds)


NO_IMAGE_HINT = "add --target kind, or [openforge] setup to its task.toml"


def no_image(task: Task) -> str:
    """Why a task that brings its own image cannot run as a process."""
    return f"{task.ref} is an image of its own (environment/Dockerfile), which a process on this machine cannot have"


@asynccontextmanager
async def process_sandbox(runner: Runner, start_files: StartFiles, order: Order) -> AsyncIterator[ProcessSandbox]:
    """A sandbox with its start files; its folders go when it is left. AttemptError for a task with its own image."""
    if order.task.dockerfile is not None:
        raise AttemptError(ErrorClass.IMAGE, no_image(order.task), hint=NO_IMAGE_HINT)
    workspace = await start_files.workspace(order.task, order.seed, order.settings, order.log)
    try:
        yield ProcessSandbox(runner, order, workspace)
    finally:
        workspace.remove()
