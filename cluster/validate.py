"""Proves by execution that a task is valid, in the same sandbox and with the same verifier as a rollout.

The oracle scores 1, doing nothing scores 0, every near miss scores 0, and the same seed makes the same start files.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.grading import grade
from cluster.runtimes.base import Runner
from cluster.runtimes.process import ProcessRuntime
from cluster.workspace import limits, make_workspace, run_script
from openforge.config.models import Sandbox
from openforge.task import Task


@dataclass(frozen=True)
class Check:
    """One thing that was tried: `expected` and `got` are rewards, or 1 and 0 for yes and no."""

    task: str
    check: str
    seed: int
    expected: float
    got: float | None
    problem: str

    @property
    def ok(self) -> bool:
        return self.got == self.expected


async def validate_task(runtime: Runner, task: Task, sandbox: Sandbox, seeds: Sequence[int], logs: Path) -> list[Check]:
    """Every check of one task for each seed."""
    checks: list[Check] = []
    plans: list[tuple[str, Path | None, float]] = [("nothing", None, 0.0), ("oracle", task.solution, 1.0)]
    plans += [(path.stem, path, 0.0) for path in task.near_misses()]
    for seed in seeds:
        prints = set()
        for name, script, expected in plans:
            log = logs / f"{task.name}.{name}.{seed}.log"
            workspace = await make_workspace(runtime, task, seed, sandbox, log)
            try:
                prints.add(fingerprint(workspace.orig))
                problem = ""
                if script is not None:
                    bounds = limits(sandbox, task.agent_timeout_s or 300.0)
                    ended = await run_script(runtime, script, workspace.folder, {}, bounds, log)
                    problem = "" if ended.code == 0 or expected == 0.0 else f"the script: {ended.detail or ended.code}"
                bounds = limits(sandbox, task.verifier_timeout_s)
                judged = await grade(runtime, task, workspace.work, workspace.orig, log, bounds)
            finally:
                workspace.remove()
            if judged.reward is not None and judged.reward != expected and not problem:
                problem = f"{name} scored {judged.reward:g}, must score {expected:g}"
            checks.append(Check(task.ref, name, seed, expected, judged.reward, problem or judged.problem))
        same = len(prints) == 1
        checks.append(
            Check(task.ref, "same start files", seed, 1.0, float(same), "" if same else "setup is not repeatable")
        )
    return checks


def fingerprint(folder: Path) -> str:
    """One hash over every path, mode, link and byte."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(folder)}\0{mode:o}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(str(path.readlink()).encode(errors="surrogateescape"))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


async def validate_tasks(
    tasks: Sequence[Task],
    sandbox: Sandbox,
    seeds: Sequence[int],
    logs: Path,
    jobs: int,
    on_done: Callable[[Task], None] = lambda task: None,
) -> list[Check]:
    """Every task, `jobs` at once, in this order."""
    runtime = ProcessRuntime(sandbox.isolation)
    await runtime.start()
    free = asyncio.Semaphore(jobs)

    async def one(task: Task) -> list[Check]:
        async with free:
            checks = await validate_task(runtime, task, sandbox, seeds, logs)
        on_done(task)
        return checks

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task)) for task in tasks]
    finally:
        await runtime.close()
    return [check for task in running for check in task.result()]
