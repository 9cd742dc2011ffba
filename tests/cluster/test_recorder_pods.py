"""The recorder as a pod of a real kind cluster that is used as one far away."""

from typing import Any

import pytest
from desk import Desk

from cluster.kube import Kube

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]


async def run(desk: Desk, commands: list[str], count: int = 1, **options: Any) -> list[Any]:
    """Rollouts whose model gives these commands, one after the other."""
    desk.model.commands = lambda session, n: commands[n] if n < len(commands) else None
    task = desk.task()
    async with desk.orchestrator(**options) as orchestrator:
        return await orchestrator.run_all([desk.spec(task, sample=sample) for sample in range(count)])


async def test_a_run_is_graded_and_its_records_are_here(far: Desk, kube: Kube) -> None:
    [rollout] = await run(far, ["echo 42 > answer.txt"])
    assert (rollout.state, rollout.reward) == ("done", 1.0), rollout.result
    assert len(far.records("call.close")) == 2
