"""The orchestrator's HTTP face, as a trainer uses it."""

import json

import aiohttp
import pytest
from desk import Desk
from model_server import ModelServer

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("isolated")]


async def test_a_rollout_over_http_from_asking_to_its_samples(desk: Desk, model: ModelServer) -> None:
    model.commands = lambda session, n: ["echo 42 > answer.txt", None][n]
    task = desk.task()
    async with desk.orchestrator() as orchestrator:
        file = orchestrator.run_dir / "orchestrator.json"
        assert file.stat().st_mode & 0o077 == 0
        face = json.loads(file.read_text())
        headers = {"Authorization": f"Bearer {face['token']}"}
        async with aiohttp.ClientSession(face["url"], headers=headers) as http:
            body = {"task": str(task.root), "harness": "react", "sample": 3, "seed": 11}
            async with http.post("/rollouts", json=body) as response:
                assert response.status == 202
                told = await response.json()
            async with http.post("/rollouts", json=body) as response:
                assert (await response.json())["rollout_id"] == told["rollout_id"]
            async with http.get(f"/rollouts/{told['rollout_id']}?wait=20") as response:
                done = await response.json()
            assert (done["state"], done["reward"], done["seed"], done["finished"]) == ("done", 1.0, 11, True)
            async with http.get(f"/rollouts/{told['rollout_id']}/samples") as response:
                assert (await response.json())["samples"] == []  # record mode makes no token ids
            async with http.delete(f"/rollouts/{told['rollout_id']}") as response:
                assert (await response.json())["state"] == "done"
            policy = {"addresses": ["http://127.0.0.1:1"], "weight_version": "7"}
            for _ in range(2):
                async with http.put("/policies/actor", json=policy) as response:
                    assert await response.json() == policy
            async with http.get("/status") as response:
                assert (await response.json())["policies"]["actor"]["weight_version"] == "7"
            for path, body, status in (
                ("/rollouts", {"task": "no-such-task", "harness": "react"}, 404),
                ("/rollouts", {"task": "desk", "harness": "react"}, 404),
                ("/rollouts", {"harness": "react"}, 400),
            ):
                async with http.post(path, json=body) as response:
                    assert response.status == status
        async with aiohttp.ClientSession(face["url"]) as stranger:
            for path in ("/status", "/rollouts/x"):
                async with stranger.get(path) as response:
                    assert response.status == 401
    assert not file.exists()
