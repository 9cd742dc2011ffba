"""A vLLM that says what it is told to, with failure switches. It is the engine, not the thing under test.

Run as a program it answers every prompt at once: `python fake_engine.py MODEL_DIR PORT TEXT…`.
"""

import asyncio
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

LOGPROB = -0.5


@dataclass
class Step:
    """One reply. `text` ends with `…` when the answer is cut before its end token; `ids` override the text."""

    text: str = "done"
    fault: str = ""
    delay_s: float = 0.0
    ids: list[int] | None = None
    logprobs: list[Any] | None = None


class FakeEngine:
    def __init__(self, tokenizer: Any, model: str = "policy", max_model_len: int = 16384) -> None:
        self.tokenizer = tokenizer
        self.end = tokenizer.token_to_id("<|im_end|>")
        self.steps: deque[Step] = deque()
        self.default = Step()
        self.requests: list[dict[str, Any]] = []
        self.cancelled = 0
        self.hold: asyncio.Event | None = None  # set: generations wait for it
        self.model = model
        self.max_model_len = max_model_len
        self.url = ""
        self._runner: web.AppRunner | None = None

    def say(self, *texts: str) -> None:
        self.steps += [Step(text) for text in texts]

    def fail(self, *faults: str) -> None:
        self.steps += [Step(fault=fault) for fault in faults]

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "max_model_len": self.max_model_len}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        self.requests.append(asked)
        if asked.get("echo"):
            scores = [None] + [LOGPROB] * (len(asked["prompt"]) - 1)
            return web.json_response({"choices": [{"logprobs": {"token_logprobs": scores}}]})
        step = self.steps.popleft() if self.steps else self.default
        try:
            if self.hold is not None:
                await self.hold.wait()
            if step.delay_s:
                await asyncio.sleep(step.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.reply(request, asked, step)

    def reply(self, request: web.Request, asked: dict[str, Any], step: Step) -> web.StreamResponse:
        fault = step.fault
        if fault.isdigit():
            return web.Response(status=int(fault), text="no")
        if fault == "too_long":
            return web.Response(status=400, text="This model's maximum context length is 5 tokens")
        if fault == "disconnect":
            assert request.transport
            request.transport.abort()
            return web.Response()
        if fault == "garbage":
            return web.Response(text="<html>")
        cut = step.text.endswith("…")
        ids = step.ids or self.tokenizer.encode(step.text.rstrip("…"), add_special_tokens=False).ids
        ids = ids + ([] if cut or step.ids else [self.end])
        finish = "length" if cut else "stop"
        if len(ids) > asked["max_tokens"]:
            ids, finish = ids[: asked["max_tokens"]], "length"
        if fault.startswith("abort"):
            ids, finish = ids[: int(fault[5:] or 0)], "abort"
        logprobs: list[Any] = step.logprobs or [LOGPROB] * len(ids)
        tokens: Any = [f"token_id:{token}" for token in ids]
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(ids)}
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": finish}
        bundle: dict[str, Any] | None = {"tokens": tokens, "token_logprobs": logprobs}
        choices = [choice]
        match fault:
            case "short_logprobs":
                logprobs.pop()
            case "nan":
                logprobs[0] = None
            case "positive":
                logprobs[0] = 0.5
            case "minus_infinity":
                logprobs[0] = -9999.0
            case "no_logprobs":
                bundle = None
            case "no_ids":
                del bundle["tokens"]  # type: ignore[index]
            case "words":
                tokens[0] = "hello"
            case "negative":
                tokens[0] = "token_id:-1"
            case "out_of_vocab":
                tokens[0] = "token_id:99999999"
            case "empty":
                tokens.clear()
                logprobs.clear()
                usage["completion_tokens"] = 0
            case "usage":
                usage["completion_tokens"] += 1
            case "prompt_cut":
                usage["prompt_tokens"] -= 1
            case "no_finish":
                choice["finish_reason"] = None
            case "two_choices":
                choices.append(dict(choice, index=1))
        choice["logprobs"] = bundle
        body: dict[str, Any] = {"choices": choices, "usage": usage}
        if fault == "version2":
            body["weight_version"] = "2"
        return web.Response(body=orjson.dumps(body), content_type="application/json")


async def serve(model_dir: Path, port: int, texts: list[str]) -> None:
    from tokenizers import Tokenizer

    engine = FakeEngine(Tokenizer.from_file(str(model_dir / "tokenizer.json")), max_model_len=1 << 20)
    engine.default = Step(texts[0] if texts else "done")
    await engine.start(port)
    print(engine.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
