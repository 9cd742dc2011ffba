"""The orchestrator's HTTP face, as a trainer uses it."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from desk import Desk, until
from face import Face, face
from model_server import ModelServer

from openforge.store.connect import query

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("isolated")]


def answers(session: str, n: int) -> str | None:
    return ["echo 42 > answer.txt", None][n]


async def test_a_rollout_over_http_from_asking_to_its_samples(desk: Desk, model: ModelServer) -> None:
    model.commands = answers
    task = desk.task().root
    async with desk.orchestrator() as orchestrator, face(orchestrator) as http:
        file = orchestrator.run_dir / "orchestrator.json"
        assert file.stat().st_mode & 0o077 == 0
        asked = {"sample": 3, "seed": 11}
        told = await http.rollout(task, **asked)
        assert (await http.rollout(task, **asked))["rollout_id"] == told["rollout_id"]
        done = await http.ended(told["rollout_id"])
        assert (done["state"], done["reward"], done["seed"], done["finished"]) == ("done", 1.0, 11, True)
        assert (done["error_class"], done["invalid_calls"], done["calls"]) == (None, 0, 2)
        assert (await http.get(f"/rollouts/{told['rollout_id']}/samples"))["samples"] == []  # record mode has no ids
        assert (await http.ask("DELETE", f"/rollouts/{told['rollout_id']}"))[1]["state"] == "done"
        policy = {"addresses": ["http://127.0.0.1:1"], "weight_version": "7"}
        for _ in range(2):
            assert await http.ask("PUT", "/policies/actor", {**policy, "token": "secret"}) == (200, policy)
        assert (await http.get("/status"))["policies"]["actor"] == policy
        for path, body, status in (
            ("/rollouts", {"task": "no-such-task", "harness": "react"}, 404),
            ("/rollouts", {"task": "desk", "harness": "react"}, 404),
            ("/rollouts", {"harness": "react"}, 400),
            ("/rollouts", {"task": str(task), "harness": "react", "purpose": "fun"}, 400),
            ("/steps", {"step": 1, "weight_version": "1", "rollouts": ["r0.x.y.0"], "samples": 1}, 404),
            ("/steps", {"step": 1, "weight_version": "1", "rollouts": [], "samples": 0}, 409),  # no trainer
        ):
            assert (await http.ask("POST", path, body))[0] == status, (path, body)
        async with aiohttp.ClientSession(json.loads(file.read_text())["url"]) as stranger:
            for path in ("/status", "/rollouts", "/rollouts/x"):
                async with stranger.get(path) as response:
                    assert response.status == 401
    assert not file.exists()


async def test_rollouts_are_listed_by_what_they_were_asked_for(desk: Desk) -> None:
    task = desk.task().root
    async with desk.orchestrator() as orchestrator, face(orchestrator) as http:
        for purpose, step, group in (("train", 1, "a"), ("train", 2, "b"), ("eval", 2, None)):
            told = await http.rollout(task, purpose=purpose, step=step, group=group)
            assert (told["purpose"], told["step"], told["group"]) == (purpose, step, group)

        async def samples(query: str) -> list[int]:
            return [view["sample"] for view in (await http.get(f"/rollouts{query}"))["rollouts"]]

        assert await samples("") == [0, 1, 2]
        assert await samples("?purpose=train") == [0, 1]
        assert await samples("?step=2") == [1, 2]
        assert await samples("?purpose=eval&step=2") == [2]
        assert await samples("?group=a&harness=react") == [0]
        assert await samples("?purpose=eval&step=1") == []
        status, told = await http.ask("GET", "/rollouts?size=3")
        assert (status, "size" in told["error"]) == (404, True)


async def test_one_key_is_one_rollout_however_many_ask_at_once(desk: Desk) -> None:
    task = desk.task().root
    async with desk.orchestrator() as orchestrator, face(orchestrator) as http:
        views = await asyncio.gather(*(http.rollout(task, key=f"k{n % 2}") for n in range(8)))
        assert sorted({view["rollout_id"] for view in views}) == sorted(orchestrator.rollouts)
        assert len(orchestrator.rollouts) == 2
        body = {"task": str(task), "harness": "pi", "key": "k0"}
        status, told = await http.ask("POST", "/rollouts", body)
        assert (status, "'k0'" in told["error"]) == (409, True)


async def test_a_trainer_at_its_end_calls_off_what_is_still_running(desk: Desk) -> None:
    desk.harness("sleep 60\n", "slow").root.parent.rename(desk.root / "harness_images")
    task = desk.task().root
    async with desk.orchestrator(project=desk.root) as orchestrator, face(orchestrator) as http:
        views = [await http.rollout(task, "slow", key=f"k{n}") for n in range(3)]
        status, told = await http.ask("DELETE", "/rollouts")
        assert (status, len(told["rollouts"])) == (200, 3)
        assert {(await http.ended(view["rollout_id"]))["state"] for view in views} == {"cancelled"}
        assert (await http.ask("DELETE", "/rollouts"))[1] == {"rollouts": []}


async def test_a_run_can_be_drained(desk: Desk) -> None:
    desk.harness("sleep 60\n", "slow").root.parent.rename(desk.root / "harness_images")
    task = desk.task().root
    async with desk.orchestrator(project=desk.root, concurrency=1) as orchestrator, face(orchestrator) as http:
        views = [await http.rollout(task, "slow", key=f"k{n}") for n in range(3)]
        first = orchestrator.rollouts[views[0]["rollout_id"]]
        await until(lambda: first.state == "running")
        status, told = await http.ask("POST", "/drain")
        assert (status, [view["rollout_id"] for view in told["rollouts"]]) == (200, [first.id])
        refused, told = await http.ask("POST", "/rollouts", {"task": str(task), "harness": "slow"})
        assert (refused, "drained" in told["error"]) == (409, True)


async def test_a_harness_of_the_project_can_be_asked_for(desk: Desk, model: ModelServer, tmp_path: Path) -> None:
    desk.harness("exit 0\n", "own").root.parent.rename(tmp_path / "harness_images")
    async with desk.orchestrator(project=tmp_path) as orchestrator, face(orchestrator) as http:
        told = await http.ended((await http.rollout(desk.task().root, "own"))["rollout_id"])
    assert (told["harness"], told["error_class"]) == ("own", "no_model_calls")


async def test_numbers_that_are_none_are_refused_by_name_and_nothing_is_written(desk: Desk) -> None:
    async with desk.orchestrator() as orchestrator, face(orchestrator) as http:
        metrics = {
            "train.reward": 0.5,
            "train.kl": float("nan"),
            "train.grad_norm": float("inf"),
            "train.entropy": None,
        }
        status, told = await http.ask("POST", "/metrics", {"step": 1, "metrics": metrics})
        assert status == 400
        for name in ("train.kl", "train.grad_norm", "train.entropy"):
            assert name in told["error"]
        assert "train.reward" not in told["error"]
        assert desk.records("metric") == []
        assert (await http.ask("POST", "/metrics", {"step": 1, "metrics": {"train.reward": 1}}))[0] == 200
    assert [(r["name"], r["value"]) for r in desk.records("metric")] == [("train.reward", 1.0)]


async def step(http: Face, number: int, *rollouts: str) -> None:
    body = {"step": number, "weight_version": str(number), "rollouts": rollouts, "samples": len(rollouts)}
    assert (await http.ask("POST", "/steps", {**body, "staleness_max": 1}))[0] == 200
    numbers = {"train.reward": float(len(rollouts))}
    assert (await http.ask("POST", "/metrics", {"step": number, "metrics": numbers}))[0] == 200


async def test_a_trainer_that_starts_again_goes_back_behind_its_last_checkpoint(desk: Desk) -> None:
    task = desk.task().root
    async with desk.orchestrator() as orchestrator, face(orchestrator) as http:
        first, second = [(await http.rollout(task))["rollout_id"] for _ in range(2)]
        assert await http.ask("POST", "/trainer", {"from_step": 0, "pid": 1}) == (
            200,
            {"incarnation": 0, "from_step": 0, "pid": 1},
        )
        await step(http, 1, first)
        await step(http, 2, first, second)
        orchestrator.policy_died.set()
        assert (await http.ask("POST", "/trainer", {"from_step": 1, "pid": 2}))[1]["incarnation"] == 1
        assert not orchestrator.policy_died.is_set()
        assert (await http.get("/status"))["trainer"]["incarnation"] == 1
        await step(http, 2, second)
    rows = query(desk.store, "SELECT step, rollout_id FROM trained ORDER BY step")
    assert [(row["step"], row["rollout_id"]) for row in rows] == [(1, first), (2, second)]
    rows = query(desk.store, "SELECT step, value FROM metrics ORDER BY step")
    assert [(row["step"], row["value"]) for row in rows] == [(1, 1.0), (2, 1.0)]


async def test_after_a_restart_of_the_orchestrator_keys_numbers_and_views_go_on(desk: Desk, model: ModelServer) -> None:
    model.commands = answers
    task = desk.task().root
    async with desk.orchestrator() as orchestrator, face(orchestrator) as http:
        run_id = orchestrator.run_id
        asked = {"key": "eval.0", "purpose": "eval", "step": 4}
        before = await http.ended((await http.rollout(task, **asked))["rollout_id"])
        await http.ask("POST", "/trainer", {"from_step": 0, "pid": 1})
    async with desk.orchestrator(run_id=run_id) as orchestrator, face(orchestrator) as http:
        kept = await http.get(f"/rollouts/{before['rollout_id']}?wait=5")
        assert [(kept[name], before[name]) for name in kept if kept[name] != before[name]] == [
            (None, before[name]) for name in ("calls", "completion_tokens")
        ]
        assert (await http.get("/rollouts?purpose=eval&step=4"))["rollouts"] == [kept]
        assert (await http.get(f"/rollouts/{before['rollout_id']}/samples"))["samples"] == []
        assert (await http.ask("DELETE", f"/rollouts/{before['rollout_id']}"))[1]["state"] == "done"
        assert await http.rollout(task, **asked) == kept
        assert (await http.rollout(task))["sample"] == 1
        assert (await http.ask("POST", "/trainer", {"from_step": 0, "pid": 1}))[1]["incarnation"] == 1
    assert [row["n"] for row in query(desk.store, "SELECT count(*) AS n FROM runs")] == [1]
    states = [r["state"] for r in desk.records("rollout.state") if r["rollout_id"] == before["rollout_id"]]
    assert states.count("queued") == 1
