"""Proves by execution that a task is valid, in the same sandbox and with the same verifier as a rollout.

The oracle scores 1, doing nothing scores 0, every near miss scores 0, and the same seed makes the same start files.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.grading import base_env
from cluster.install import install
from cluster.runtimes.base import Grade, Order, Runtime
from cluster.states import AttemptError
from openforge.config.models import Sandbox
from openforge.errors import InfraError
from openforge.harness import Launch, load_harness
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


async def validate_task(
    runtime: Runtime, task: Task, sandbox: Sandbox, seeds: Sequence[int], logs: Path
) -> list[Check]:
    """Every check of one task for each seed."""
    checks: list[Check] = []
    plans: list[tuple[str, Path | None, float]] = [("nothing", None, 0.0), ("oracle", task.solution, 1.0)]
    plans += [(path.stem, path, 0.0) for path in task.near_misses()]
    for seed in seeds:
        prints = set()
        for name, script, expected in plans:
            order = _order(task, seed, name, sandbox, logs)
            problem = ""
            try:
                async with runtime.sandbox(order) as place:
                    prints.add(await place.fingerprint())
                    if script is not None:
                        layout = place.layout
                        launch = _launch(script, layout.home)
                        env = base_env(layout.path, layout.home, layout.temp)
                        ended = await place.run(launch, env, _no_certificates(logs))
                        if ended.code != 0 and expected != 0.0:
                            problem = f"the script: {ended.detail or ended.code}"
                    judged = await place.grade()
            except (AttemptError, InfraError) as error:  # of this task's image or setup: the others go on
                judged = Grade(None, error.summary, {}, 0.0)
            if judged.reward is not None and judged.reward != expected and not problem:
                problem = f"{name} scored {judged.reward:g}, must score {expected:g}"
            checks.append(Check(task.ref, name, seed, expected, judged.reward, problem or judged.problem))
        same = len(prints) == 1
        checks.append(Check(task.ref, "same start files", seed, 1.0, float(same), "" if same else _unlike(prints)))
    return checks


def _unlike(prints: set[str]) -> str:
    return "setup is not repeatable" if prints else "there were none"


def _order(task: Task, seed: int, name: str, sandbox: Sandbox, logs: Path) -> Order:
    harness = load_harness("react")  # it does not run: the script does
    return Order(
        rollout_id=f"validate.{task.name}.{name}.{seed}",
        attempt=0,
        task=task,
        seed=seed,
        harness=harness,
        installed=install(harness),
        settings=sandbox,
        wall_s=task.agent_timeout_s or 300.0,
        log=logs / f"{task.name}.{name}.{seed}.log",
    )


def _launch(script: Path, home: str) -> Launch:
    """A script of the task as if it were a harness, with the folder that it stands in."""
    files = {f".solution/{path.name}": path.read_text() for path in script.parent.iterdir() if path.is_file()}
    return Launch(argv=("bash", f"{home}/.solution/{script.name}"), env={}, files=files)


def _no_certificates(logs: Path) -> Path:
    path = logs / "no-certificates"
    path.touch()
    return path


async def validate_tasks(
    runtime: Runtime,
    tasks: Sequence[Task],
    sandbox: Sandbox,
    seeds: Sequence[int],
    logs: Path,
    jobs: int,
    on_done: Callable[[Task], None] = lambda task: None,
) -> list[Check]:
    """Every task, `jobs` at once, in this order. The runtime must not keep start files for a second sandbox."""
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
