"""veRL's agent loop that runs no agent: it asks the orchestrator for a rollout in the real harness and hands over what
the recorder kept.

One rollout becomes 1..k rows, the main one last, since veRL takes the group's statistics from the last row of each.
What was not the agent's doing becomes no row: the group is smaller. Nothing is raised for one rollout, since veRL
would drop its whole group.
"""

import asyncio
import logging
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.workers.rollout.llm_server import LLMServerClient

from openforge.errors import OpenForgeError
from trainer.live_policy import LivePolicy
from trainer.orchestrator import Orchestrator
from trainer.rows import Row, RowError, make_row
from trainer.versions import Versions

log = logging.getLogger("openforge.loop")


class _Servers:
    """One request of veRL's client as it is, without the asynchronous client's own merging, which loses the spans."""

    def __init__(self, client: LLMServerClient) -> None:
        self._client = client

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        return await LLMServerClient.generate(
            self._client, request_id, prompt_ids=prompt_ids, sampling_params=sampling_params
        )


class _Worker:
    """What all loops of this process share: the live policy, announced once, and the way to the orchestrator."""

    def __init__(self, config: Any, client: LLMServerClient) -> None:
        ours, rollout = config.openforge, config.actor_rollout_ref.rollout
        self.orchestrator = Orchestrator.from_environment()
        self.policy = LivePolicy(
            _Servers(client),
            max_model_len=rollout.max_model_len,
            limit=ours.max_calls,
            versions=Versions.from_settings(ours),
        )

    async def start(self) -> None:
        policy = self.policy
        await policy.start()
        told = {
            "addresses": [policy.address],
            "token": policy.token,
            "weight_version": policy.version,
        }
        await self.orchestrator.ask("PUT", "/policies/default", told)
        self._watch = asyncio.create_task(self._tell_death())

    async def _tell_death(self) -> None:
        await self.policy.dead.wait()
        await self.orchestrator.ask("DELETE", "/policies/default")


_worker: "asyncio.Task[_Worker] | None" = None


async def _shared(config: Any, client: LLMServerClient) -> _Worker:
    """Started by the first loop of this process, awaited by all; one that failed to start is started anew."""
    global _worker
    if _worker is None or (_worker.done() and _worker.exception() is not None):
        _worker = asyncio.create_task(_started(_Worker(config, client)))
    return await asyncio.shield(_worker)


async def _started(worker: _Worker) -> _Worker:
    try:
        await worker.start()
    except OpenForgeError:
        await worker.policy.close()
        await worker.orchestrator.close()
        raise
    return worker


class LocalLoops(AgentLoopManagerTQ):  # type: ignore[misc]
    """All loops in one process of the trainer's own machine, wherever the GPUs are: orchestrator and live policy listen
    on its loopback only."""

    async def _init_agent_loop_workers(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        worker = self.agent_loop_workers_class.options(scheduling_strategy=here)
        given = (self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)
        self.agent_loop_workers = [worker.remote(*given)]


class HarnessLoop(AgentLoopBase):  # type: ignore[misc]
    """Registered under the name `openforge` in trainer/loops.yaml."""

    def __init__(self, trainer_config: Any, server_manager: LLMServerClient, **_: Any) -> None:
        # not the base class's: it prepares chat templates, and here every id comes from the recorder
        self.config = trainer_config.config
        self.server_manager = server_manager

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The rows of one rollout; none when it was void."""
        try:
            worker = await _shared(self.config, self.server_manager)
            view = await worker.orchestrator.rollout(self._request(row))
            if view["reward"] is None:
                log.warning("%s gives no reward: %s %s", view["rollout_id"], view["state"], view["error_class"] or "")
                return []
            samples = await worker.orchestrator.samples(view["rollout_id"])
        except OpenForgeError as error:
            log.warning("a rollout of %s was lost: %s", row["extra_info"]["task"], error)
            return []
        return self._outputs(view, samples)

    def _request(self, row: dict[str, Any]) -> dict[str, Any]:
        asked = row["extra_info"]
        return {
            "task": asked["task"],
            "harness": asked["harness"],
            "seed": asked["seed"],
            "purpose": asked["purpose"],
            "step": int(row["global_steps"]),
            "group": row["uid"],
            "key": f"{self.config.openforge.incarnation}.{row['uid']}.{row['session_id']}",
        }

    def _outputs(self, view: dict[str, Any], samples: list[dict[str, Any]]) -> list[AgentLoopOutput]:
        ours, rollout = self.config.openforge, self.config.actor_rollout_ref.rollout
        invalid = bool(view.get("invalid_calls")) and ours.penalize_invalid_calls
        reward = 0.0 if invalid else float(view["reward"])
        rows: list[Row] = []
        for sample in samples:
            try:
                rows.append(
                    make_row(sample, reach=ours.reach, max_length=rollout.prompt_length + rollout.response_length)
                )
            except RowError as error:
                log.warning("%s: %s", view["rollout_id"], error)
        outputs = []
        for row in rows:
            extra = {
                "min_global_steps": row.oldest,
                "max_global_steps": row.newest,
                "turn_scores": [],
                "tool_rewards": [],
                "reward_extra_info": {"acc": float(view["reward"] >= 1)},
                "rollout_id": view["rollout_id"],
                "task": view["task"],
                "harness": view["harness"],
                "success": float(view["reward"] >= 1),
                "invalid_calls": view.get("invalid_calls") or 0,
                "rows_refused": len(samples) - len(rows),
            }
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=row.prompt,
                    response_ids=row.response,
                    response_mask=row.mask,
                    response_logprobs=row.logprobs,
                    reward_score=reward,
                    num_turns=view["calls"] or 0,
                    metrics=AgentLoopMetrics(),
                    extra_fields=extra,
                )
            )
        return outputs
