"""A recorder whose policy is being trained: weights change, the trainer goes away and comes back. All of it faked."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from fake_live_policy import FakeLivePolicy, Reply
from recorder_desk import ROLLOUT, SECRET, TOKEN, Desk, until

from proxy_addons.render.base import Renderer

HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m", "messages": HI}
ENGINE = {"kind": "trainer", "model": "policy"}


class Live(NamedTuple):
    """A recorder with one rollout, and a live policy it may have been told of."""

    desk: Desk
    policy: FakeLivePolicy
    other: FakeLivePolicy

    async def tell(self, *policies: FakeLivePolicy, version: str = "3") -> int:
        told = {"addresses": [policy.address for policy in policies], "token": "live-token", "weight_version": version}
        return (await self.desk.control("PUT", "/policy", told))[0]

    async def asked(self, count: int = 1) -> None:
        await until(lambda: len(self.policy.asked) >= count)

    def call(self, **body: Any) -> "asyncio.Task[tuple[int, Any]]":
        return asyncio.create_task(self.desk.post({**CHAT, **body}))


@pytest.fixture
async def live(make_desk: Any, renderer: Renderer) -> AsyncIterator[Live]:
    desk: Desk = await make_desk(engine=ENGINE, keep_alive_s=0.02)
    await desk.register()
    policies = [FakeLivePolicy(renderer.tok.full, "live-token") for _ in range(2)]
    for policy in policies:
        await policy.start()
    yield Live(desk, *policies)
    for policy in policies:
        await policy.kill()


async def test_a02_an_answer_says_which_weights_sampled_what(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.replies.append(Reply("one two three", versions=[[0, "3"], [2, "4"]]))
    await live.desk.chat(HI)
    [record] = live.desk.records("call.close")
    assert record["versions"] == [[0, "3"], [2, "4"]]
    assert (record["weight_version_min"], record["weight_version_max"]) == ("3", "4")
    await live.desk.seal()
    [row] = live.desk.records("sample")
    start = len(record["input_ids"])
    assert row["versions"] == [[start, "3"], [start + 2, "4"]]


async def test_a01_a02_an_answer_without_a_weight_version_is_refused_and_counted(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.fail("no_versions")
    status, told = await live.desk.post(CHAT)
    assert (status, told["error"]["code"]) == (503, "version_missing")
    assert (await live.desk.status())["aborted"] == {"version_missing": 1}
    assert live.desk.records("call.close") == []


async def test_a08_a_call_that_meets_a_weight_sync_is_answered_and_recorded_once(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.fail("503", "429", retry_after="0.1")
    live.policy.say("hello")
    assert (await live.desk.chat(HI))["message"]["content"] == "hello"
    assert len(live.policy.asked) == 3
    assert [len(live.desk.records(kind)) for kind in ("call.open", "call.close", "call.abort")] == [1, 1, 0]
    assert (await live.desk.status())["engine_busy"] == 2
    sealed = await live.desk.seal()
    assert (sealed["calls"], sealed["aborted"], len(sealed["samples"])) == (1, 0, 1)


@pytest.mark.parametrize("fault", ["reset", "cut"])
async def test_an_answer_that_was_sampled_and_lost_is_sampled_again_and_recorded_once(live: Live, fault: str) -> None:
    await live.tell(live.policy)
    live.policy.replies += [Reply("lost", fault), Reply("kept")]
    assert (await live.desk.chat(HI))["message"]["content"] == "kept"
    assert len(live.policy.asked) == 2
    [record] = live.desk.records("call.close")
    assert record["completion_ids"] == [*live.policy.tokenizer.encode("kept").ids, live.policy.end]
    assert (await live.desk.status())["engine_retries"] == 1
    assert len((await live.desk.seal())["samples"]) == 1


async def test_a_trainer_that_comes_back_elsewhere_answers_the_calls_of_the_one_that_died(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.hold = asyncio.Event()
    calls = [live.call() for _ in range(5)]
    await live.asked(5)
    await live.policy.kill()
    await until(lambda: live.desk.parts.engine.retries >= 5)  # type: ignore[union-attr]
    assert len((await live.desk.status())["calls"]) == 5
    await live.tell(live.other, version="4")
    assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 5
    assert [len(live.desk.records(kind)) for kind in ("call.open", "call.close", "call.abort")] == [5, 5, 0]


async def test_a_trainer_that_comes_back_at_the_same_place_is_found_again(live: Live) -> None:
    await live.tell(live.policy)
    port = int(live.policy.address.rpartition(":")[2])
    await live.policy.kill()
    call = live.call()
    await until(lambda: live.desk.parts.engine.retries)  # type: ignore[union-attr]
    await live.policy.start(port)
    assert (await call)[0] == 200


async def test_a_trainer_that_comes_back_with_another_token_is_waited_for(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.token = "of-the-next-one"
    call = live.call()
    await until(lambda: len(live.policy.at) >= 2)
    told = {"addresses": [live.policy.address], "token": "of-the-next-one", "weight_version": "3"}
    assert (await live.desk.control("PUT", "/policy", told))[0] == 200
    assert (await call)[0] == 200
    status = await live.desk.status()
    assert (status["engine_retries"] >= 2, status["engine_busy"]) == (True, 0)


async def test_a_machine_that_is_gone_without_a_word_is_left_when_the_policy_moves(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.hold = asyncio.Event()
    call = live.call()
    await live.asked()
    await live.tell(live.policy, live.other)  # one more place: nothing that is under way is given up
    await live.tell(live.policy, version="4")
    assert not call.done()
    assert (len(live.policy.asked), live.policy.cancelled) == (1, 0)
    await live.tell(live.other, version="5")
    assert (await call)[0] == 200
    await until(lambda: live.policy.cancelled == 1)
    assert len(live.desk.records("call.close")) == 1


async def test_a_stream_is_kept_alive_while_the_policy_is_away(live: Live) -> None:
    url = f"{live.desk.site}/r/{TOKEN}/v1/chat/completions"
    async with live.desk.http.post(url, json={**CHAT, "stream": True}) as answer:
        comments = [await answer.content.readuntil(b"\n\n") for _ in range(2)]  # nobody knows where the policy is
        await live.tell(live.policy)
        live.policy.hold = asyncio.Event()
        await live.asked()
        comments += [await answer.content.readuntil(b"\n\n") for _ in range(2)]  # it thinks
        await live.policy.kill()
        comments += [await answer.content.readuntil(b"\n\n") for _ in range(3)]  # it died
        await live.tell(live.other)
        rest = await answer.content.read()
    assert set(comments) == {b": keep-alive\n\n"}
    assert b'"content":"done"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert [len(live.desk.records(kind)) for kind in ("call.open", "call.close", "call.abort")] == [1, 1, 0]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_closes_the_request_to_the_policy(live: Live, stream: bool) -> None:
    await live.tell(live.policy)
    live.policy.hold = asyncio.Event()
    call = live.call(stream=stream)
    await live.asked()
    call.cancel()
    await until(lambda: live.policy.cancelled == 1)
    [record] = await until(lambda: live.desk.records("call.abort"))
    assert record["error_class"] == "client_gone"


async def test_the_seal_closes_the_request_to_the_policy(live: Live) -> None:
    await live.tell(live.policy)
    live.policy.hold = asyncio.Event()
    call = live.call()
    await live.asked()
    assert (await live.desk.seal())["calls"] == 0
    assert (await call)[0] == 410
    await until(lambda: live.policy.cancelled == 1)
    assert live.desk.records("call.close", "sample") == []


@pytest.mark.parametrize("where", ["unknown", "dead", "busy"])
async def test_the_seal_ends_a_call_that_waits_for_the_policy(live: Live, where: str) -> None:
    if where != "unknown":
        await live.tell(live.policy)
    if where == "dead":
        await live.policy.kill()
    live.policy.fail("503", retry_after="1000")
    call = live.call()
    await until(lambda: live.desk.parts.registry.get(ROLLOUT).in_flight)
    if where == "busy":
        await live.asked()
    await live.desk.seal()
    async with asyncio.timeout(5):
        assert (await call)[0] == 410
    assert [record["error_class"] for record in live.desk.records("call.abort")] == ["sealed"]


async def test_the_rollouts_deadline_ends_the_waiting(live: Live) -> None:
    await live.desk.register("r1.t.h.1", "a" * 24, deadline_s=0.2)
    status, told = await live.desk.post(CHAT, token="a" * 24)
    assert (status, told["error"]["code"]) == (403, "limit_time")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [("dead", 503, "engine_dead"), ("too_long", 400, "context_length_exceeded"), ("500", 503, "engine_unavailable")],
)
async def test_what_is_refused_for_good_is_told_at_once(live: Live, fault: str, status: int, code: str) -> None:
    await live.tell(live.policy)
    live.policy.fail(fault)
    answered, told = await live.desk.post(CHAT)
    assert (answered, told["error"]["code"]) == (status, code)
    assert len(live.policy.asked) == 1
    assert [record["error_class"] for record in live.desk.records("call.abort")] == [code]


async def test_a_prompt_that_does_not_fit_never_reaches_the_policy(make_desk: Any) -> None:
    desk: Desk = await make_desk(engine=ENGINE, max_model_len=10)
    await desk.register()
    long = [{"role": "user", "content": "word " * 20}]
    status, told = await desk.post({"messages": long})  # and is refused although nobody knows where the policy is
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")


# ── PUT /policy ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_status_shows_the_policy_and_not_its_token(live: Live) -> None:
    assert (await live.desk.status())["policy"] == {"addresses": [], "weight_version": "0"}
    for _ in range(2):  # told again: nothing changes
        assert await live.tell(live.policy, version="7") == 200
        status = await live.desk.status()
        assert status["policy"] == {"addresses": [live.policy.address], "weight_version": "7"}
        assert "live-token" not in str(status)


@pytest.mark.parametrize(
    "change",
    [
        {"addresses": ["10.0.0.1:80"]},
        {"addresses": ["ftp://host"]},
        {"addresses": ["http://"]},
        {"addresses": ["http://host:99999"]},
        {"addresses": ["http://host:x"]},
        {"addresses": "http://host"},
        {"weight_version": None},
        {"weight_version": 3},
        {"typo": 1},
    ],
    ids=str,
)
async def test_a_policy_that_could_not_be_asked_is_refused(live: Live, change: dict[str, Any]) -> None:
    told = {"addresses": ["http://127.0.0.1:1"], "token": "", "weight_version": "3"}
    status, said = await live.desk.control("PUT", "/policy", {**told, **change})
    assert status == 400
    assert next(iter(change)) in said["error"]["message"]
    assert (await live.desk.status())["policy"]["addresses"] == []


async def test_only_who_has_the_control_secret_may_move_the_policy(live: Live) -> None:
    for secret in ("", TOKEN, f"{SECRET}x"):
        headers = {"authorization": f"Bearer {secret}"}
        async with live.desk.http.put(f"{live.desk.admin}/policy", json={}, headers=headers) as answer:
            assert answer.status == 401


async def test_a_fixed_policy_does_not_move(desk: Desk) -> None:
    told = {"addresses": ["http://127.0.0.1:1"], "weight_version": "3"}
    status, said = await desk.control("PUT", "/policy", told)
    assert (status, said["error"]["code"]) == (409, "fixed_policy")
    assert "policy" not in await desk.status()
