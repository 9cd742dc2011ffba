"""The live policy's client by itself: the wire, waiting, sticking, and what it refuses."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fake_live_policy import FakeLivePolicy, Reply
from recorder_desk import until

from proxy_addons.engines.base import EngineError, Generation
from proxy_addons.engines.trainer import LivePolicy
from proxy_addons.render.base import Renderer
from proxy_addons.settings import EngineSettings, Policy, Sampling


@pytest.fixture
async def policy(renderer: Renderer) -> AsyncIterator[FakeLivePolicy]:
    policy = FakeLivePolicy(renderer.tok.full, "k")
    await policy.start()
    yield policy
    await policy.kill()


@pytest.fixture
async def client(policy: FakeLivePolicy, renderer: Renderer) -> AsyncIterator[LivePolicy]:
    settings = EngineSettings(kind="trainer", model="policy")
    client = LivePolicy(settings, Sampling(temperature=0.7, top_k=5), (151645, 151643), renderer.vocab_size)
    client.move(Policy(addresses=(f"{policy.address}/",), token="k", weight_version="3"))
    yield client
    await client.close()


async def ask(client: LivePolicy, session_id: str = "r1.t.h.0", max_tokens: int = 9) -> Generation:
    return await client.generate(b"1,2,3", 3, max_tokens, session_id, "call-1")


async def test_the_shape_of_a_request(client: LivePolicy, policy: FakeLivePolicy) -> None:
    await ask(client)
    assert policy.asked == [
        {
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 5,
            "stop_token_ids": [151645, 151643],
            "max_tokens": 9,
            "session_id": "r1.t.h.0",
            "request_id": "call-1",
            "prompt": [1, 2, 3],
        }
    ]


async def test_the_prompt_is_sent_as_it_was_written(client: LivePolicy, policy: FakeLivePolicy) -> None:
    await client.generate(b"1, 2 ,3", 3, 9, "s", "c")
    assert policy.bodies[0].endswith(b',"prompt":[1, 2 ,3]}')


async def test_an_answer_is_ids_logprobs_and_the_versions_that_sampled_them(
    client: LivePolicy, policy: FakeLivePolicy
) -> None:
    policy.replies.append(Reply("one two", versions=[[0, "3"], [1, "4"]]))
    generation = await ask(client)
    assert generation.ids.tolist() == [*policy.tokenizer.encode("one two").ids, policy.end]
    assert generation.logprobs.tolist() == [-0.5] * len(generation.ids)
    assert (generation.finish, generation.versions) == ("stop", ((0, "3"), (1, "4")))
    assert (await ask(client, max_tokens=1)).finish == "length"


FAULTS = {
    "no_versions": "version_missing",  # A01, A02
    "null_version": "version_missing",
    "late_version": "version_missing",
    "falling_versions": "bad_versions",
    "version_after_the_end": "bad_versions",
    "numbers_as_versions": "bad_versions",
    "no_ids": "ids_missing",
    "words": "ids_missing",
    "true": "ids_missing",
    "negative": "token_out_of_vocab",
    "out_of_vocab": "token_out_of_vocab",
    "no_integer_is_so_long": "token_out_of_vocab",
    "empty": "no_sampled_tokens",
    "too_many": "too_many_tokens",
    "no_logprobs": "logprobs_missing",
    "short_logprobs": "logprob_len_mismatch",
    "nan": "bad_logprob",
    "positive": "bad_logprob",
    "minus_infinity": "bad_logprob",
    "no_finish": "finish_missing",
    "html": "engine_garbage",
    "list": "engine_garbage",
    "dead": "engine_dead",
    "too_long": "context_length_exceeded",
    "400": "engine_refused",
    "404": "engine_refused",
    "500": "engine_unavailable",
    "502": "engine_unavailable",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a01_t07_t13_t34_an_answer_that_is_not_exact_is_refused(
    client: LivePolicy, policy: FakeLivePolicy, fault: str
) -> None:
    policy.fail(fault)
    with pytest.raises(EngineError) as caught:
        await ask(client)
    assert caught.value.error_class == FAULTS[fault]
    assert len(policy.asked) == 1  # refused, not asked again
    assert (await ask(client)).finish == "stop"


@pytest.mark.parametrize("status", ["429", "503"])
async def test_a08_it_comes_again_when_it_was_told_to_and_not_before(
    client: LivePolicy, policy: FakeLivePolicy, status: str
) -> None:
    policy.fail(status, retry_after="0.3")
    policy.fail(status, retry_after="0.05")
    await ask(client)
    first, second, third = policy.at
    assert second - first >= 0.3
    assert third - second >= 0.05
    assert (client.busy, client.retries) == (2, 0)


@pytest.mark.parametrize("retry_after", [None, "", "Wed, 21 Oct 2026 07:28:00 GMT", "nan", "inf", "-1", "0"])
async def test_a_busy_policy_that_does_not_say_when_is_asked_again_soon_but_not_at_once(
    client: LivePolicy, policy: FakeLivePolicy, retry_after: str | None
) -> None:
    policy.fail("503", retry_after=retry_after)
    async with asyncio.timeout(10):
        await ask(client)
    assert policy.at[1] - policy.at[0] >= 0.05


async def test_there_is_no_limit_on_how_often_it_comes_again(client: LivePolicy, policy: FakeLivePolicy) -> None:
    policy.fail(*["429"] * 12, retry_after="0")
    await ask(client)
    assert client.busy == 12


async def test_d08_no_time_limit_stands_around_an_answer(client: LivePolicy) -> None:
    limits = client._session.timeout
    assert (limits.total, limits.sock_read) == (None, None)


async def test_a_policy_that_is_away_is_looked_for_ever_more_rarely(
    client: LivePolicy, policy: FakeLivePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def skip(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 40:
            client.move(Policy(addresses=(policy.address,), token="k", weight_version="3"))
        await sleep(0)

    client.move(Policy(addresses=("http://127.0.0.1:1",), weight_version="3"))
    monkeypatch.setattr(asyncio, "sleep", skip)
    await ask(client)
    assert len(waits) == client.retries == 40
    assert waits[0] <= 0.1
    assert max(waits) <= 2
    assert min(waits[10:]) >= 1
    assert len(set(waits[10:])) == 30  # jitter: calls that fell together do not come back together


async def test_without_an_address_it_waits_until_it_is_told_one(client: LivePolicy, policy: FakeLivePolicy) -> None:
    client.move(Policy(weight_version="3"))
    calls = [asyncio.create_task(ask(client)) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert not policy.asked
    client.move(Policy(addresses=(policy.address,), token="k", weight_version="3"))
    assert len(await asyncio.gather(*calls)) == 3
    assert client.retries == 0


async def test_an_address_from_the_settings_is_asked_until_another_is_told(
    policy: FakeLivePolicy, renderer: Renderer
) -> None:
    settings = EngineSettings(kind="trainer", model="policy", url=policy.address, api_key="k", weight_version="1")
    client = LivePolicy(settings, Sampling(), (1,), renderer.vocab_size)
    assert (await ask(client)).finish == "stop"
    assert client.policy.weight_version == "1"
    await client.close()


async def test_a_rollout_sticks_to_one_of_several_addresses(
    client: LivePolicy, policy: FakeLivePolicy, renderer: Renderer
) -> None:
    other = FakeLivePolicy(renderer.tok.full, "k")
    await other.start()
    client.move(Policy(addresses=(policy.address, other.address), token="k", weight_version="3"))
    sessions = [f"r1.task.react.{number}" for number in range(20)]
    for session in sessions * 2:
        await ask(client, session)
    here, there = ({asked["session_id"] for asked in one.asked} for one in (policy, other))
    assert here | there == set(sessions)
    assert not here & there
    assert min(len(here), len(there)) >= 5
    await other.kill()


async def test_it_leaves_nothing_behind(client: LivePolicy, policy: FakeLivePolicy) -> None:
    policy.fail("reset", "dead")
    policy.hold = asyncio.Event()
    cancelled = asyncio.create_task(ask(client))
    await until(lambda: policy.asked)
    cancelled.cancel()
    policy.hold.set()
    ended = await asyncio.gather(cancelled, *(ask(client) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(one, Generation) for one in ended) >= 3
    assert client._under_way == {}
