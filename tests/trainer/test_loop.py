import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from tokenizers import Tokenizer

from cluster.launch import live_engine, orchestrate
from cluster.orchestrator import Orchestrator
from cluster.runtimes import bwrap
from openforge.config.models import Config, Run

torch = pytest.importorskip("torch", reason="the train set is not installed")

from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput  # noqa: E402
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from trainer import loop  # noqa: E402
from trainer.loop import HarnessLoop  # noqa: E402
from trainer.orchestrator import TOKEN, URL  # noqa: E402

DONE = {
    "rollout_id": "r1.a.react.0",
    "finished": True,
    "state": "done",
    "reward": 1.0,
    "error_class": None,
    "task": "desk/a",
    "harness": "react",
    "calls": 3,
    "invalid_calls": 0,
}
ROW = {
    "uid": "u1",
    "session_id": 2,
    "global_steps": 5,
    "extra_info": {"task": "desk/a", "harness": "react", "seed": 9, "purpose": "train"},
}


def sample(name: str, ids: list[int], mask: list[int], **changed: Any) -> dict[str, Any]:
    logprobs = [-0.5 if flag else None for flag in mask]
    told = {"sample_id": name, "token_ids": ids, "loss_mask": mask, "logprobs": logprobs, "versions": [[0, "4"]]}
    return {**told, **changed}


SIDE = sample("side", [1, 2, 3], [0, 0, 1], versions=[[0, "3"]])
MAIN = sample("main", [1, 5, 6, 7, 8], [0, 1, 0, 1, 1], versions=[[0, "4"], [2, "5"]])


class Desk:
    """The orchestrator's side of the wire: what it was asked, and what it will say."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.view: dict[str, Any] = dict(DONE)
        self.samples: list[dict[str, Any]] = [SIDE, MAIN]
        self.refusals: dict[str, int] = {}  # status by path

    async def answer(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer hush"
        self.asked.append((request.method, request.path, await request.json() if request.can_read_body else None))
        if status := self.refusals.get(request.path):
            return web.json_response({"error": "refused"}, status=status)
        if request.path.endswith("/samples"):
            return web.json_response({**self.view, "samples": self.samples})
        return web.json_response(self.view if request.path.startswith("/rollouts") else {})

    def told(self, method: str, path: str) -> list[Any]:
        return [body for asked, where, body in self.asked if (asked, where) == (method, path)]


class Client(FullyAsyncLLMServerClient):  # type: ignore[misc]
    """veRL's own client of asynchronous training, with the scripted server where it would ask Ray for one."""

    def __init__(self, pieces: list[TokenOutput | Exception]) -> None:
        super().__init__(OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}}))
        self.pieces, self.asked = pieces, []

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return "server", SimpleNamespace(generate=SimpleNamespace(remote=self._remote))

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        return None

    async def _remote(self, **asked: Any) -> TokenOutput:
        self.asked.append(asked)
        found = self.pieces.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr("trainer.orchestrator._BACKOFF_S", 0.0001)
    monkeypatch.setattr(loop, "_worker", None)
    made = Desk()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv(URL, f"http://127.0.0.1:{runner.addresses[0][1]}")
    monkeypatch.setenv(TOKEN, "hush")
    yield made
    await close_worker()
    await runner.cleanup()


async def close_worker() -> None:
    if loop._worker is not None and loop._worker.exception() is None:
        worker = loop._worker.result()
        worker._watch.cancel()
        await worker.policy.close()
        await worker.orchestrator.close()


def harness_loop(client: Client | None = None, lengths: dict[str, int] | None = None, **ours: Any) -> HarnessLoop:
    told = {"max_calls": 4, "incarnation": 1, "from_step": 4, "reach": None, "penalize_invalid_calls": True, **ours}
    rollout = lengths or {"max_model_len": 64, "prompt_length": 4, "response_length": 4}
    config = OmegaConf.create({"openforge": told, "actor_rollout_ref": {"rollout": rollout}})
    return HarnessLoop(SimpleNamespace(config=config), client or Client([]), tokenizer=None, processor=None)


async def test_a_rollout_is_asked_for_by_a_key_that_is_its_own(desk: Desk) -> None:
    await harness_loop().run({}, **ROW)
    [asked] = desk.told("POST", "/rollouts")
    assert asked == {
        "task": "desk/a",
        "harness": "react",
        "seed": 9,
        "purpose": "train",
        "step": 5,
        "group": "u1",
        "key": "1.u1.2",
    }


async def test_m14_one_rollout_is_its_rows_main_last_each_with_its_reward(desk: Desk) -> None:
    rows = await harness_loop().run({}, **ROW)
    assert all(isinstance(row, AgentLoopOutput) for row in rows)
    assert [(row.prompt_ids, row.response_ids, row.response_mask) for row in rows] == [
        ([1, 2], [3], [1]),
        ([1], [5, 6, 7, 8], [1, 0, 1, 1]),
    ]
    assert [row.response_logprobs for row in rows] == [[-0.5], [-0.5, 0.0, -0.5, -0.5]]
    assert [row.reward_score for row in rows] == [1.0, 1.0]
    assert [row.num_turns for row in rows] == [3, 3]


async def test_r07_every_row_has_the_same_fields_as_verl_stores_them(desk: Desk) -> None:
    stored = [row.as_dict() for row in await harness_loop().run({}, **ROW)]
    assert len({frozenset(row) for row in stored}) == 1
    assert len({frozenset(row["extra_fields"]) for row in stored}) == 1
    assert {"rollout_log_probs", "rm_scores", "response_mask"} <= set(stored[0])
    for row in stored:
        lengths = {len(row[name]) for name in ("responses", "response_mask", "rollout_log_probs", "rm_scores")}
        assert len(lengths) == 1
        assert row["rm_scores"].sum() == 1.0


async def test_a04_a_row_says_the_steps_of_its_oldest_and_newest_weights(desk: Desk) -> None:
    rows = await harness_loop().run({}, **ROW)
    steps = [(row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) for row in rows]
    assert steps == [(3, 3), (4, 5)]


@pytest.mark.parametrize("state", ["error", "cancelled"])
async def test_s10_a_rollout_without_a_reward_is_no_row(desk: Desk, state: str) -> None:
    desk.view.update(state=state, reward=None, error_class="engine_dead")
    assert await harness_loop().run({}, **ROW) == []
    assert not [path for _, path, _ in desk.asked if path.endswith("/samples")]


async def test_d02_a_rollout_that_failed_but_was_graded_is_trained(desk: Desk) -> None:
    desk.view.update(state="failed", reward=0.0, error_class="time_limit")
    assert [row.reward_score for row in await harness_loop().run({}, **ROW)] == [0.0, 0.0]


async def test_s13_a_rollout_without_samples_is_no_row(desk: Desk) -> None:
    desk.samples = []
    assert await harness_loop().run({}, **ROW) == []


@pytest.mark.parametrize("path", ["/rollouts", "/rollouts/r1.a.react.0/samples"])
@pytest.mark.parametrize("status", [404, 503])
async def test_what_the_orchestrator_refuses_is_one_rollout_lost_and_nothing_raised(
    desk: Desk, path: str, status: int
) -> None:
    desk.refusals[path] = status
    assert await harness_loop().run({}, **ROW) == []
    desk.refusals.clear()
    assert len(await harness_loop().run({}, **ROW)) == 2


async def test_r02_a_sample_that_is_not_exact_is_left_out_and_its_siblings_stay(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.samples = [sample("a", [1, 2], [0, 0]), SIDE, sample("b", [1, 2], [0, 1], logprobs=None), MAIN]
    rows = await harness_loop().run({}, **ROW)
    assert [row.response_ids for row in rows] == [[3], [5, 6, 7, 8]]
    assert {row.extra_fields["rows_refused"] for row in rows} == {2}
    assert "a trains nothing" in caplog.text
    assert "b has no logprobs" in caplog.text


async def test_r04_a_sample_longer_than_a_row_may_be_is_left_out(desk: Desk) -> None:
    long = sample("long", [*range(1, 10)], [0] * 8 + [1])
    desk.samples = [long, SIDE]
    assert [row.response_ids for row in await harness_loop().run({}, **ROW)] == [[3]]
    assert [len(row.prompt_ids) for row in await harness_loop(reach=2).run({}, **ROW)] == [3, 2]


@pytest.mark.parametrize(("asked", "reward"), [(True, 0.0), (False, 1.0)])
async def test_a_success_with_an_invalid_call_is_worth_nothing_when_asked(
    desk: Desk, asked: bool, reward: float
) -> None:
    desk.view["invalid_calls"] = 2
    rows = await harness_loop(penalize_invalid_calls=asked).run({}, **ROW)
    assert {row.reward_score for row in rows} == {reward}
    assert {row.extra_fields["success"] for row in rows} == {1.0}  # it was one all the same
    assert {row.extra_fields["invalid_calls"] for row in rows} == {2}


async def test_the_policy_is_announced_once_however_many_rollouts_begin_at_once(desk: Desk) -> None:
    found = await asyncio.gather(*(harness_loop().run({}, **{**ROW, "session_id": n}) for n in range(8)))
    assert [len(rows) for rows in found] == [2] * 8
    [told] = desk.told("PUT", "/policies/default")
    assert told["weight_version"] == "4"  # where this training went on from
    assert len(told["addresses"]) == 1
    assert [path for _, path, _ in desk.asked].index("/policies/default") == 0  # before any rollout needs it


async def test_a_policy_that_could_not_be_announced_is_announced_by_the_next_rollout(desk: Desk) -> None:
    desk.refusals["/policies/default"] = 503
    assert await harness_loop().run({}, **ROW) == []
    desk.refusals.clear()
    assert len(await harness_loop().run({}, **ROW)) == 2


async def generated(desk: Desk) -> tuple[int, Any]:
    """What the announced policy answers to a call, as the recorder makes it."""
    told = desk.told("PUT", "/policies/default")[-1]
    ask = {"session_id": "r1", "request_id": "c1", "prompt": [1, 2], "max_tokens": 8, "top_k": 20}
    headers = {"authorization": f"Bearer {told['token']}"}
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{told['addresses'][0]}/generate", json=ask, headers=headers) as response:
            return response.status, await response.json()


def token_output(ids: list[int], step: int, stop: str) -> TokenOutput:
    fields = {"global_steps": step}
    return TokenOutput(token_ids=ids, log_probs=[-0.25] * len(ids), stop_reason=stop, extra_fields=fields)


async def test_a02_verls_asynchronous_client_does_not_merge_the_spans_of_two_weights(desk: Desk) -> None:
    client = Client([token_output([5, 6], 4, "aborted"), token_output([7], 5, "completed")])
    await harness_loop(client).run({}, **ROW)
    status, told = await generated(desk)
    assert status == 200
    assert told == {
        "ids": [5, 6, 7],
        "logprobs": [-0.25] * 3,
        "finish": "stop",
        "versions": [[0, "4"], [2, "5.1"]],
    }
    assert [asked["prompt_ids"] for asked in client.asked] == [[1, 2], [1, 2, 5, 6]]
    assert client.asked[0]["sampling_params"]["top_k"] == 20


async def test_servers_that_died_are_told_to_the_orchestrator(desk: Desk) -> None:
    await harness_loop(Client([RuntimeError("the actor died")])).run({}, **ROW)
    assert (await generated(desk))[0] == 502
    await until(lambda: bool(desk.told("DELETE", "/policies/default")))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.002)


@pytest.fixture
async def run(tmp_path: Path, qwen3_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Orchestrator]:
    """A real run that has no policy but the one that a trainer will announce."""
    if problem := bwrap.probe():
        pytest.skip(problem)
    monkeypatch.setattr(loop, "_worker", None)
    config = Config(run=Run(concurrency=1, retries=0, time_limit_s=60.0))
    async with orchestrate(config, tmp_path, live_engine(), model_dir=qwen3_dir) as orchestrator:
        told = orjson.loads((orchestrator.run_dir / "orchestrator.json").read_bytes())
        monkeypatch.setenv(URL, told["url"])
        monkeypatch.setenv(TOKEN, told["token"])
        yield orchestrator
        await close_worker()


REAL = {**ROW, "extra_info": {**ROW["extra_info"], "task": "desk/count-lines"}}
LONG = {"max_model_len": 16_384, "prompt_length": 8192, "response_length": 8192}


@pytest.mark.contract
async def test_a_rollout_in_its_harness_becomes_the_rows_that_verls_servers_sampled(
    run: Orchestrator, qwen3_dir: Path
) -> None:
    """The whole way and back: loop, orchestrator, sandbox, harness, recorder, live policy, veRL's client."""
    tokenizer = Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))
    ids = [*tokenizer.encode("There are no lines to count.").ids, tokenizer.token_to_id("<|im_end|>")]
    client = Client([token_output(ids[:3], 4, "aborted"), token_output(ids[3:], 5, "completed")])
    [row] = await harness_loop(client, lengths=LONG).run({}, **REAL)
    assert row.prompt_ids == client.asked[0]["prompt_ids"]
    assert client.asked[1]["prompt_ids"] == row.prompt_ids + ids[:3]
    assert (row.response_ids, row.response_mask) == (ids, [1] * len(ids))
    assert row.response_logprobs == [-0.25] * len(ids)
    assert (row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) == (4, 5)
    assert (row.reward_score, row.num_turns) == (0.0, 1)
    [rollout] = run.roster.accounts()
    assert (rollout.purpose, rollout.step, rollout.group, rollout.key) == ("train", 5, "u1", "1.u1.2")


@pytest.mark.contract
async def test_when_the_servers_die_rollouts_end_at_once_and_give_no_row(run: Orchestrator) -> None:
    client = Client([RuntimeError("the actor died")])
    async with asyncio.timeout(40):  # the rollout's own limit is longer
        assert await harness_loop(client, lengths=LONG).run({}, **REAL) == []
        await asyncio.wait_for(run.policy_died.wait(), 10)
        assert await harness_loop(client, lengths=LONG).run({}, **{**REAL, "session_id": 3}) == []
    assert {rollout.state for rollout in run.roster.accounts()} == {"error"}
    assert len(client.asked) == 1
