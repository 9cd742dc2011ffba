"""A run whose policy is a trainer's: it waits for the policy, gives exact samples, and outlives its recorder."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from desk import until
from face import face
from tokenizers import Tokenizer

from cluster.launch import live_engine, orchestrate
from openforge.config.models import Config, Run
from openforge.store.connect import query

sys.path.append(str(Path(__file__).parents[1] / "proxy_addons"))
from fake_live_policy import LOGPROB, FakeLivePolicy

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("isolated")]
TASK = "desk/count-lines"
SECRET = "s3cret-of-the-policy"


@pytest.fixture
async def policy(qwen3_dir: Path) -> AsyncIterator[FakeLivePolicy]:
    made = FakeLivePolicy(Tokenizer.from_file(str(qwen3_dir / "tokenizer.json")), SECRET)
    await made.start()
    yield made
    await made.kill()


async def test_rollouts_wait_for_the_trainers_policy_and_outlive_recorder_and_policy(
    tmp_path: Path, qwen3_dir: Path, policy: FakeLivePolicy
) -> None:
    config = Config(run=Run(concurrency=2, retries=2, time_limit_s=60.0))
    async with orchestrate(config, tmp_path, live_engine(), model_dir=qwen3_dir) as orchestrator:
        async with face(orchestrator) as http:
            name = (await http.rollout(TASK, purpose="train", step=1, group="g"))["rollout_id"]
            assert not (await http.get(f"/rollouts/{name}?wait=3"))["finished"]  # no policy has said where it is
            told = {"addresses": [policy.address], "weight_version": "3"}
            assert await http.ask("PUT", "/policies/default", {**told, "token": SECRET}) == (200, told)
            done = await http.ended(name, 60)
            assert (done["state"], done["calls"], done["invalid_calls"]) == ("done", 1, 0)
            [row] = (await http.get(f"/rollouts/{name}/samples"))["samples"]
            sampled = [i for i, trained in enumerate(row["loss_mask"]) if trained]
            assert [row["logprobs"][i] for i in sampled] == [LOGPROB] * len(sampled)
            assert row["token_ids"][: sampled[0]] == policy.asked[0]["prompt"]
            assert (row["is_main"], row["weight"]) == (True, 1.0)
            assert {version for _, version in row["versions"]} == {policy.version}

            assert orchestrator.recorder is not None
            assert orchestrator.recorder.ready is not None
            os.kill(orchestrator.recorder.ready.pid, signal.SIGKILL)
            await asyncio.wait_for(orchestrator.recorder.died.wait(), 10)
            assert (await http.ask("PUT", "/policies/default", {**told, "token": SECRET}))[0] == 200
            after = await http.ended((await http.rollout(TASK))["rollout_id"], 60)
            assert after["state"] == "done"
            assert len((await http.get(f"/rollouts/{after['rollout_id']}/samples"))["samples"]) == 1
            assert (await http.get("/status"))["recorders"][0]["starts"] == 2
            policy.hold = asyncio.Event()
            name = (await http.rollout(TASK, key="k"))["rollout_id"]
            await until(lambda: len(policy.asked) == 3)
            assert (await http.ask("DELETE", "/policies/default"))[0] == 200
            dead = await http.ended(name, 10)
            assert (dead["state"], dead["error_class"], dead["attempt"]) == ("error", "policy", 0)
            policy.hold = None
            await http.ask("POST", "/trainer", {"from_step": 0, "pid": 2})
            assert (await orchestrator.recorder.status())["policy"]["addresses"] == []
            await http.ask("PUT", "/policies/default", {**told, "token": SECRET})
            assert (await http.rollout(TASK, key="k"))["rollout_id"] == name
            again = await http.ended(name, 60)
            assert (again["state"], again["attempt"]) == ("done", 1)
    assert not holding(tmp_path, SECRET)
    rows = query(tmp_path, "SELECT purpose, step, group_id, samples FROM rollouts ORDER BY sample")
    assert [tuple(row.values()) for row in rows] == [("train", 1, "g", 1), (None, None, None, 1), (None, None, None, 1)]


def holding(root: Path, text: str) -> list[Path]:
    """The files below `root` in which `text` stands."""
    return [path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
