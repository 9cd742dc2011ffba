"""veRL's own tool agent loop over our tasks: the peer of the recorded path in benchmarks/training.py.

veRL's ToolAgentLoop asks veRL's servers itself and keeps the history itself; its one tool is the shell of room.py. One
line a rollout goes to `rollouts.jsonl`. Knows no recorder, no harness and no orchestrator.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from benchmarks.room import CONFIG, ROLLOUTS, Room, first_messages
from cluster.runtimes.process import ProcessRuntime
from cluster.workspace import make_workspace
from openforge.config.models import Config
from openforge.errors import OpenForgeError
from openforge.task import Task, load_tasks

_ROOMS: dict[str, Room] = {}


class Shell(BaseTool):  # type: ignore[misc]
    """The tool. veRL makes an instance for each call; which room it is in stands in the rollout's `tools_kwargs`."""

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return kwargs["create_kwargs"]["room"], ToolResponse()

    async def execute(
        self, instance_id: str, parameters: Any, **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        return ToolResponse(text=await _ROOMS[instance_id].command(parameters)), 0.0, {}


@dataclass(frozen=True)
class Place:
    """What all loops of a process share; `folder` holds the run's configuration and takes the results."""

    folder: Path
    config: Config
    runtime: ProcessRuntime
    slots: asyncio.Semaphore

    def note(self, told: Mapping[str, Any]) -> None:
        with (self.folder / ROLLOUTS).open("ab") as file:
            file.write(orjson.dumps(told) + b"\n")


@cache
def place(folder: str) -> Place:
    config = Config.model_validate_json((Path(folder) / CONFIG).read_bytes())
    runtime = ProcessRuntime(config.sandbox.isolation)
    return Place(Path(folder), config, runtime, asyncio.Semaphore(config.run.concurrency))


class ShellLoop(ToolAgentLoop):  # type: ignore[misc]
    """veRL's loop with start files before it and a grade after it; `folder` stands in its entry of the register."""

    def __init__(self, *args: Any, folder: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._place = place(folder)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The row of one rollout; none when it was void."""
        asked, group = time.time(), row["extra_info"]
        told: dict[str, Any] = {"task": group["task"], "seed": group["seed"], "asked": asked, "error": ""}
        async with self._place.slots:
            told["started"] = time.time()
            try:
                output = await self._rollout(load_tasks([group["task"]])[0], sampling_params, row, told)
            except (OpenForgeError, OSError, TimeoutError) as error:
                told["error"] = f"{type(error).__name__}: {error}"
            told["ended"] = time.time()
        self._place.note(told)
        return [] if told["error"] else [output]

    async def _rollout(
        self, task: Task, sampling_params: dict[str, Any], row: dict[str, Any], told: dict[str, Any]
    ) -> AgentLoopOutput:
        config, name = self._place.config, uuid4().hex
        log = self._place.folder / f"{name}.log"
        await self._place.runtime.start()
        workspace = await make_workspace(self._place.runtime, task, row["extra_info"]["seed"], config.sandbox, log)
        _ROOMS[name] = room = Room(config, workspace, log)
        log.unlink(missing_ok=True)
        try:
            told["running"] = time.time()
            sampling = {**sampling_params, **_sampling(config)}
            inside = {"raw_prompt": first_messages(task), "tools_kwargs": {"shell": {"create_kwargs": {"room": name}}}}
            async with asyncio.timeout(config.run.time_limit_s):
                output: AgentLoopOutput = await super().run(sampling, **{**row, **inside})
            told["grading"] = time.time()
            graded = await room.grade(task)
        finally:
            del _ROOMS[name]
            workspace.remove()
            log.unlink(missing_ok=True)
        if graded.reward is None:
            raise OpenForgeError(graded.problem)
        told |= {
            "reward": graded.reward,
            "tokens": sum(output.response_mask),
            "calls": output.num_turns
            // 2,  # veRL counts the answers, the tool turns between them, and the first prompt
            "model_s": output.metrics.generate_sequences,
            "tools_s": output.metrics.tool_calls,
            "prompt_ids": list(output.prompt_ids),
        }
        output.reward_score = graded.reward
        success = float(graded.reward >= 1)
        output.extra_fields.update(reward_extra_info={"acc": success})
        return output


def _sampling(config: Config) -> dict[str, Any]:
    """What the recorder asks of the policy for a rollout of this run."""
    ours = config.policy.sampling
    return {
        "temperature": ours.temperature,
        "top_p": ours.top_p,
        "top_k": ours.top_k,
        "max_tokens": ours.max_tokens,
        "logprobs": True,
    }
