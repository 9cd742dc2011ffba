"""The engine adapter by itself: probing at the start, scoring, waiting."""

from collections.abc import AsyncIterator

import pytest
from fake_engine import FakeEngine, Step

from proxy_addons.engines.base import EngineError
from proxy_addons.engines.vllm import Vllm
from proxy_addons.settings import EngineSettings, Sampling


@pytest.fixture
async def vllm(engine: FakeEngine) -> AsyncIterator[Vllm]:
    settings = EngineSettings(url=f"{engine.url}/v1/", model="policy", weight_version="w7", api_key="k")
    vllm = Vllm(settings, Sampling(temperature=0.7, top_k=5), (151645, 151643), 151669)
    yield vllm
    await vllm.close()


async def test_t05_an_engine_that_gives_no_ids_is_found_at_the_start(vllm: Vllm, engine: FakeEngine) -> None:
    engine.default = Step("x")
    info = await vllm.probe(151645)
    assert (info.max_model_len, info.weight_version) == (16384, "w7")
    assert engine.requests[0]["max_tokens"] == 1
    for fault, error_class in (("no_ids", "ids_missing"), ("no_logprobs", "logprobs_missing")):
        engine.fail(fault)
        with pytest.raises(EngineError) as caught:
            await vllm.probe(151645)
        assert caught.value.error_class == error_class
    engine.model = "another"
    with pytest.raises(EngineError) as caught:
        await vllm.probe(151645)
    assert caught.value.error_class == "wrong_model"


async def test_scoring_gives_one_value_per_id(vllm: Vllm) -> None:
    assert await vllm.score([1, 2, 3]) == [None, -0.5, -0.5]


async def test_the_shape_of_a_request(vllm: Vllm, engine: FakeEngine) -> None:
    await vllm.generate(b"1,2,3", 3, 9, "session", "call")
    assert engine.requests == [
        {
            "model": "policy",
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 5,
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "stop_token_ids": [151645, 151643],
            "max_tokens": 9,
            "session_id": "session",
            "request_id": "call",
            "prompt": [1, 2, 3],
        }
    ]


async def test_an_engine_that_aborts_for_ever_is_given_up(vllm: Vllm, engine: FakeEngine) -> None:
    engine.default = Step("x", "abort0")
    with pytest.raises(EngineError) as caught:
        await vllm.generate(b"1", 1, 9, "s", "c")
    assert caught.value.error_class == "engine_aborted"


async def test_aborted_tokens_that_fill_the_answer_end_it(vllm: Vllm, engine: FakeEngine) -> None:
    engine.steps += [Step("one two three", "abort2"), Step("four five", "abort1")]
    generation = await vllm.generate(b"1", 1, 3, "s", "c")
    assert (len(generation.ids), generation.finish) == (3, "length")
    assert generation.versions == ((0, "w7"), (2, "w7"))


async def test_an_engine_that_is_away_says_so() -> None:
    vllm = Vllm(EngineSettings(url="http://127.0.0.1:1", model="m"), Sampling(), (1,), 10)
    for ask in (vllm.info(), vllm.generate(b"1", 1, 1, "s", "c"), vllm.score([1])):
        with pytest.raises(EngineError) as caught:
            await ask
        assert caught.value.error_class == "engine_unreachable"
    await vllm.close()
