"""react without its harness: the same instruction, the same tool, for an agent loop that runs outside the sandbox.

Each command runs in a sandbox of its own over the work folder of the task; start files, limits and grading are those of
a rollout. Also writes the two files that tell veRL of its loop and its tool. Loads no veRL: the desk does this.
"""

import ast
import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cluster.grading import base_env, grade
from cluster.runtimes.base import Grade, Spec
from cluster.workspace import Workspace, limits
from openforge.config.models import Config
from openforge.errors import OpenForgeError
from openforge.task import Task

NAME = "verl"
"""Of this loop, in the plan and in veRL's register."""

ROLLOUTS, CONFIG = "rollouts.jsonl", "config.json"
_REACT = Path(__file__).resolve().parent.parent / "harness_images" / "react" / "react.py"


@cache
def react() -> Mapping[str, Any]:
    """The constants of the harness that the peer is compared with: SYSTEM, TOOL, MAX_OUTPUT, COMMAND_S."""
    found: dict[str, Any] = {}
    for node in ast.parse(_REACT.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names = [target.id for target in node.targets[0].elts if isinstance(target, ast.Name)]
            found.update(zip(names, ast.literal_eval(node.value), strict=True))
    return found


def first_messages(task: Task) -> list[dict[str, str]]:
    """What react begins with. OpenForgeError for a task with skills: this loop lists none."""
    if task.skills:
        raise OpenForgeError(f"{task.ref} has skills, which veRL's loop is not told of")
    return [{"role": "system", "content": react()["SYSTEM"]}, {"role": "user", "content": task.instruction}]


@dataclass
class Room:
    """The work folder of one rollout, and the commands that are run in it, one after the other."""

    config: Config
    workspace: Workspace
    log: Path
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def command(self, arguments: Any) -> str:
        """As react answers: whatever the model got wrong is told to the model."""
        command = arguments.get("command") if isinstance(arguments, dict) else None
        if not isinstance(command, str) or "\0" in command:
            return 'error: arguments must be {"command": "…"}'
        async with self.turn:
            return await self._run(command)

    async def _run(self, command: str) -> str:
        runtime, folder, limit_s = self.workspace.runtime, self.workspace.folder, react()["COMMAND_S"]
        layout = runtime.layout(folder)
        env = base_env(layout.path, layout.home, layout.temp)
        bounds = limits(self.config.sandbox, limit_s)
        ended = await runtime.run(Spec(("bash", "-c", command), env, folder, bounds, log=self.log))
        text = self.log.read_text(errors="replace")[: react()["MAX_OUTPUT"]] if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        if ended.reason == "time":
            return f"error: no end after {limit_s} s"
        how = ended.detail if ended.code is None else f"exit {ended.code}" if ended.code else ""
        return (text + (f"\n[{how}]" if how else "")) or "(no output)"

    async def grade(self, task: Task) -> Grade:
        work, orig = self.workspace.work, self.workspace.orig
        bounds = limits(self.config.sandbox, task.verifier_timeout_s)
        return await grade(self.workspace.runtime, task, work, orig, self.log, bounds)


def write_register(folder: Path, config: Config) -> tuple[Path, Path]:
    """veRL's two files, of agent loops and of tools, in `folder`; JSON is YAML."""
    (folder / CONFIG).write_text(config.model_dump_json(), encoding="utf-8")
    loops, tools = folder / "loops.yaml", folder / "tools.yaml"
    ours = {"name": "openforge", "_target_": "trainer.loop.HarnessLoop"}
    theirs = {"name": NAME, "_target_": "benchmarks.verl_loop.ShellLoop", "folder": str(folder)}
    loops.write_text(json.dumps([ours, theirs]), encoding="utf-8")
    shell = {"class_name": "benchmarks.verl_loop.Shell", "config": {"type": "native"}, "tool_schema": react()["TOOL"]}
    tools.write_text(json.dumps({"tools": [shell]}), encoding="utf-8")
    return loops, tools
