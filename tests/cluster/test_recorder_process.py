"""A recorder as its own process, told of a live policy over its control face."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tokenizers import Tokenizer

from cluster.recorder import RecorderError
from cluster.recorder_process import RecorderProcess

pytestmark = pytest.mark.contract
TOKEN = "t" * 24
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class StandIn:
    """A live policy that says one thing."""

    def __init__(self, model_dir: Path, text: str) -> None:
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.ids = [*tokenizer.encode(text).ids, tokenizer.token_to_id("<|im_end|>")]
        self.tokens: list[str] = []

    async def generate(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("authorization", ""))
        logprobs = [-0.5] * len(self.ids)
        return web.json_response({"ids": self.ids, "logprobs": logprobs, "finish": "stop", "versions": [[0, "3"]]})

    async def start(self) -> str:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()


@pytest.fixture
def settings(tmp_path: Path, qwen3_dir: Path) -> dict[str, Any]:
    return {
        "run_id": "r1",
        "run_dir": str(tmp_path / "store" / "runs" / "r1"),
        "engine": {"kind": "trainer", "model": "policy"},
        "model_dir": str(qwen3_dir),
        "ca_dir": str(tmp_path / "ca"),
    }


@pytest.fixture
async def recorder(tmp_path: Path, settings: dict[str, Any]) -> AsyncIterator[RecorderProcess]:
    recorder = RecorderProcess(settings, tmp_path / "recorder.log")
    await recorder.start()
    yield recorder
    await recorder.stop()


async def test_a_recorder_that_is_told_where_the_policy_is_answers_from_it(
    recorder: RecorderProcess, qwen3_dir: Path
) -> None:
    assert (await recorder.status())["policy"] == {"addresses": [], "weight_version": "0"}
    policy = StandIn(qwen3_dir, '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>')
    address = await policy.start()
    for _ in range(2):
        await recorder.set_policy([address], "live-token", "3")
    assert (await recorder.status())["policy"] == {"addresses": [address], "weight_version": "3"}
    await recorder.register("r1.t.h.0", {"token": TOKEN})
    assert recorder.ready is not None
    url = f"http://127.0.0.1:{recorder.ready.site_port}/r/{TOKEN}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=CHAT) as answer:
        assert answer.status == 200, await answer.text()
    sealed = await recorder.seal("r1.t.h.0", 0)
    assert (sealed.calls, len(sealed.samples), sealed.invalid_calls) == (1, 1, 1)
    assert policy.tokens == ["Bearer live-token"]
    await policy.stop()


async def test_a_recorder_of_another_engine_or_gone_says_so(
    recorder: RecorderProcess, settings: dict[str, Any], tmp_path: Path
) -> None:
    fixed = RecorderProcess(
        {**settings, "engine": {"kind": "vllm", "model": "policy", "url": "http://127.0.0.1:1"}}, tmp_path / "fixed.log"
    )
    await fixed.start()
    with pytest.raises(RecorderError, match="409"):
        await fixed.set_policy(["http://127.0.0.1:1"], "", "3")
    await fixed.stop()
    with pytest.raises(RecorderError, match="not running"):
        await fixed.set_policy(["http://127.0.0.1:1"], "", "3")
    with pytest.raises(RecorderError, match="addresses"):
        await recorder.set_policy(["127.0.0.1:1"], "", "3")
