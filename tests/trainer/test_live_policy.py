import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from trainer.live_policy import LivePolicy
from trainer.versions import Versions

Answer = dict[str, Any]


@dataclass
class Piece:
    """As veRL's TokenOutput."""

    token_ids: Sequence[int]
    log_probs: Sequence[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


def piece(ids: Sequence[int], step: int | None = 0, stop: str = "completed") -> Piece:
    return Piece(list(ids), [-token / 8 for token in ids], stop, {"global_steps": step})


@dataclass
class Servers:
    """veRL's servers, scripted: one piece a request, or an error; with `hold` set a request waits to be let go."""

    pieces: list[Piece | Exception] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    hold: asyncio.Event | None = None
    cancelled: int = 0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Piece:
        self.asked.append({"request_id": request_id, "prompt": prompt_ids, **sampling_params})
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        found = self.pieces.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


class Caller:
    """The recorder's side, over HTTP."""

    def __init__(self, policy: LivePolicy, http: aiohttp.ClientSession) -> None:
        self.policy, self.http = policy, http

    async def post(self, prompt: Sequence[int] = (1, 2, 3), token: str | None = None, **told: Any) -> Any:
        """Status, body, Retry-After."""
        ask = {"session_id": "s", "request_id": "c", "prompt": list(prompt), "max_tokens": 8, **told}
        headers = {"authorization": f"Bearer {self.policy.token if token is None else token}"}
        async with self.http.post(f"{self.policy.address}/generate", json=ask, headers=headers) as response:
            return response.status, await response.json(), response.headers.get("retry-after")

    async def answer(self, **told: Any) -> Answer:
        status, body, _ = await self.post(**told)
        assert status == 200, body
        return dict(body)


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
async def make(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr("trainer.live_policy._PAUSE_S", 0)
    made: list[LivePolicy] = []
    async with aiohttp.ClientSession() as http:

        async def start(**changed: Any) -> Caller:
            told = {"max_model_len": 32, "limit": 2, "versions": Versions(), **changed}
            policy = LivePolicy(servers, **told)
            made.append(policy)
            await policy.start()
            return Caller(policy, http)

        yield start
        for policy in made:
            await policy.close()


@pytest.fixture
async def caller(make: Callable[..., Any]) -> Caller:
    started = await make()
    assert isinstance(started, Caller)
    return started


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  what is awaited has no event
            await asyncio.sleep(0.002)


async def test_an_answer_is_the_servers_ids_with_their_logprobs_and_weights(caller: Caller, servers: Servers) -> None:
    servers.pieces = [piece([7, 8, 9], step=4)]
    told = await caller.answer(session_id="r1", temperature=0.7, top_p=0.9, top_k=20, stop_token_ids=[9])
    expected = {"ids": [7, 8, 9], "logprobs": [-7 / 8, -1.0, -9 / 8], "finish": "stop", "versions": [[0, "4"]]}
    assert told == expected
    [asked] = servers.asked
    assert (asked["request_id"], asked["prompt"]) == ("r1", [1, 2, 3])  # one rollout stays with one server
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.9, 20)
    assert (asked["max_tokens"], asked["stop_token_ids"], asked["logprobs"]) == (8, [9], True)


async def test_a02_an_aborted_generation_goes_on_from_its_own_tokens_and_names_both_weights(
    caller: Caller, servers: Servers
) -> None:
    servers.pieces = [piece([7, 8], 4, "aborted"), piece([], 4, "abort"), piece([9, 10], 5)]
    told = await caller.answer()
    assert told["ids"] == [7, 8, 9, 10]
    assert told["logprobs"] == [-7 / 8, -1.0, -9 / 8, -10 / 8]
    assert told["versions"] == [[0, "4"], [2, "5"]]
    assert [asked["prompt"] for asked in servers.asked] == [[1, 2, 3], [1, 2, 3, 7, 8], [1, 2, 3, 7, 8]]
    assert [asked["max_tokens"] for asked in servers.asked] == [8, 6, 6]
    assert caller.policy.continued == 2


async def test_a02_spans_of_the_same_weights_are_one(caller: Caller, servers: Servers) -> None:
    servers.pieces = [piece([7], 4, "aborted"), piece([8], 4, "aborted"), piece([9], 5, "aborted"), piece([10], 5)]
    assert (await caller.answer())["versions"] == [[0, "4"], [2, "5"]]


async def test_weights_that_sampled_nothing_are_not_named(caller: Caller, servers: Servers) -> None:
    servers.pieces = [piece([], 3, "aborted"), piece([8], 4)]
    assert (await caller.answer())["versions"] == [[0, "4"]]


@pytest.mark.parametrize(
    ("pieces", "stop_ids", "finish"),
    [
        ([piece([7, 8])], [], "stop"),
        ([piece(range(10, 18), stop="length")], [], "length"),
        ([piece(range(10, 18))], [17], "stop"),  # its end is the last id that was allowed
        ([piece(range(10, 18), stop="aborted")], [], "length"),  # aborted after its last id
        ([piece([7] * 5, stop="aborted"), piece([8] * 3)], [], "length"),
        ([piece([])], [], "length"),
    ],
)
async def test_w23_finish_says_whether_the_policy_came_to_an_end(
    caller: Caller, servers: Servers, pieces: list[Piece | Exception], stop_ids: list[int], finish: str
) -> None:
    servers.pieces = pieces
    assert (await caller.answer(stop_token_ids=stop_ids))["finish"] == finish


async def test_no_more_is_asked_for_than_the_context_has_room(caller: Caller, servers: Servers) -> None:
    servers.pieces = [piece([7, 8], stop="length")]
    assert (await caller.answer(prompt=range(1, 31), max_tokens=500))["finish"] == "length"
    assert servers.asked[0]["max_tokens"] == 2


@pytest.mark.parametrize("length", [32, 40])
async def test_t31_a_prompt_that_fills_the_context_is_refused_and_no_server_asked(
    caller: Caller, servers: Servers, length: int
) -> None:
    status, body, _ = await caller.post(prompt=[1] * length)
    assert (status, body["error_class"]) == (400, "context_length_exceeded")
    assert str(length) in body["error"]
    assert (servers.asked, caller.policy.running, caller.policy.dead.is_set()) == ([], 0, False)


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": []}, {"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"prompt": ["x"]}, {"images": []}],
)
async def test_a_request_that_makes_no_sense_is_refused_for_good(
    caller: Caller, servers: Servers, wrong: dict[str, Any]
) -> None:
    status, body, _ = await caller.post(**wrong)
    assert (status, body["error_class"]) == (400, "invalid_request")
    assert next(iter(wrong)) in body["error"]
    assert (servers.asked, caller.policy.running, caller.policy.dead.is_set()) == ([], 0, False)


@pytest.mark.parametrize("token", ["", "wrong", "tökén"])
async def test_a_stranger_is_answered_401(caller: Caller, servers: Servers, token: str) -> None:
    status, body, _ = await caller.post(token=token)
    assert (status, body["error_class"]) == (401, "unauthorized")
    async with caller.http.get(f"{caller.policy.address}/info") as response:
        assert response.status == 401
    assert servers.asked == []


async def test_each_training_has_a_token_of_its_own(make: Callable[..., Any]) -> None:
    assert (await make()).policy.token != (await make()).policy.token


async def test_a08_more_than_the_limit_are_told_to_come_again(caller: Caller, servers: Servers) -> None:
    servers.hold, servers.pieces = asyncio.Event(), [piece([7]), piece([8]), piece([9])]
    held = [asyncio.create_task(caller.answer()) for _ in range(2)]
    await until(lambda: len(servers.asked) == 2)
    status, body, retry = await caller.post()
    assert (status, body["error_class"]) == (429, "busy")
    assert 0 < float(retry) < 5
    assert (caller.policy.running, caller.policy.pushed_back) == (2, 1)
    servers.hold.set()
    assert [answer["ids"] for answer in await asyncio.gather(*held)] == [[7], [8]]
    assert (await caller.answer())["ids"] == [9]
    assert caller.policy.running == 0


async def test_a08_the_limit_holds_while_long_prompts_are_still_on_their_way(
    make: Callable[..., Any], servers: Servers
) -> None:
    caller = await make(max_model_len=1 << 20)
    servers.hold, servers.pieces = asyncio.Event(), [piece([7]), piece([8])]
    asking = [asyncio.create_task(caller.post(prompt=[1] * 300_000)) for _ in range(12)]
    await until(lambda: caller.policy.pushed_back == 10)
    servers.hold.set()
    statuses = [status for status, _, _ in await asyncio.gather(*asking)]
    assert sorted(statuses) == [200] * 2 + [429] * 10
    assert len(servers.asked) == 2


async def test_a08_a_policy_that_only_aborts_says_come_again_and_is_not_dead(
    caller: Caller, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.live_policy._STUCK", 3)
    servers.pieces = [piece([], stop="aborted")] * 4 + [piece([7])]
    status, body, retry = await caller.post()
    assert (status, body["error_class"]) == (503, "policy_paused")
    assert float(retry) > 0
    assert not caller.policy.dead.is_set()
    assert (await caller.answer())["ids"] == [7]


async def test_any_new_id_shows_that_an_aborted_generation_is_not_stuck(
    caller: Caller, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.live_policy._STUCK", 1)
    servers.pieces = [piece(ids, stop="aborted") for ids in ([], [7], [], [8], [])] + [piece([9])]
    assert (await caller.answer())["ids"] == [7, 8, 9]


async def test_servers_that_are_gone_are_told_to_the_recorder_and_to_the_trainer(
    caller: Caller, servers: Servers
) -> None:
    servers.pieces = [piece([7], 4, "aborted"), RuntimeError("the actor died"), piece([7])]
    assert not caller.policy.dead.is_set()
    status, body, _ = await caller.post()
    assert (status, body["error_class"]) == (502, "engine_dead")
    assert "the actor died" in body["error"]
    assert caller.policy.dead.is_set()
    assert caller.policy.running == 0


async def test_a_request_that_the_servers_refuse_is_no_death(caller: Caller, servers: Servers) -> None:
    servers.pieces = [ValueError("Token id 99999 is out of vocabulary"), piece([7])]
    status, body, _ = await caller.post()
    assert (status, body["error_class"]) == (400, "invalid_request")
    assert "out of vocabulary" in body["error"]
    assert not caller.policy.dead.is_set()
    assert (await caller.answer())["ids"] == [7]


async def test_a01_ids_of_weights_without_a_name_are_never_handed_out(caller: Caller, servers: Servers) -> None:
    servers.pieces = [piece([7], step=None)]
    status, body, _ = await caller.post()
    assert (status, body["error_class"]) == (502, "engine_dead")
    assert "which weights" in body["error"]


async def test_r08_logprobs_that_the_servers_did_not_give_are_not_made_up(caller: Caller, servers: Servers) -> None:
    servers.pieces = [Piece([7, 8], None, "completed", {"global_steps": 1})]
    assert (await caller.answer())["logprobs"] == []  # which the recorder refuses


async def test_closing_the_connection_cancels_the_generation(caller: Caller, servers: Servers) -> None:
    servers.hold = asyncio.Event()
    call = asyncio.create_task(caller.post())
    await until(lambda: caller.policy.running == 1 and bool(servers.asked))
    call.cancel()
    await until(lambda: servers.cancelled == 1 and caller.policy.running == 0)
    assert not caller.policy.dead.is_set()


async def test_a_caller_that_dies_in_the_middle_of_its_prompt_harms_nobody(caller: Caller, servers: Servers) -> None:
    port = int(caller.policy.address.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /generate HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {caller.policy.token}\r\n"
    writer.write(f"{head}content-length: 999\r\n\r\n{{".encode())
    await until(lambda: caller.policy.running == 1)
    writer.transport.abort()
    await until(lambda: caller.policy.running == 0)
    assert not caller.policy.dead.is_set()
    servers.pieces = [piece([7])]
    assert (await caller.answer())["ids"] == [7]


async def test_a_resumed_training_names_its_weights_in_answers_and_in_info(
    make: Callable[..., Any], servers: Servers
) -> None:
    caller = await make(versions=Versions(incarnation=2, from_step=4, from_version="4.1"))

    async def info() -> Answer:
        headers = {"authorization": f"Bearer {caller.policy.token}"}
        async with caller.http.get(f"{caller.policy.address}/info", headers=headers) as response:
            return dict(await response.json())

    assert await info() == {"max_model_len": 32, "weight_version": "4.1", "running": 0}
    servers.pieces = [piece([7], 4, "aborted"), piece([8], 5)]
    assert (await caller.answer())["versions"] == [[0, "4.1"], [1, "5.2"]]
    assert (await info())["weight_version"] == "5.2"
