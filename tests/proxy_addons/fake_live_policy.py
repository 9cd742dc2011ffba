"""A trainer's live policy that says what it is told to, with failure switches. It is the policy, not what is tested."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

LOGPROB = -0.5


@dataclass
class Reply:
    """One reply: `text` in ids with its end token, or a `fault`; `retry_after` goes with a status for one."""

    text: str = "done"
    fault: str = ""
    retry_after: str | None = None
    versions: Any = None


class FakeLivePolicy:
    def __init__(self, tokenizer: Any, token: str = "") -> None:
        self.tokenizer = tokenizer
        self.token = token
        self.end = tokenizer.token_to_id("<|im_end|>")
        self.version = "3"
        self.replies: deque[Reply] = deque()
        self.asked: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.at: list[float] = []  # when, by the loop's clock
        self.cancelled = 0
        self.hold: asyncio.Event | None = None  # set: generations wait for it
        self._open: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self.address = ""

    def say(self, *texts: str) -> None:
        self.replies += [Reply(text) for text in texts]

    def fail(self, *faults: str, retry_after: str | None = None) -> None:
        self.replies += [Reply(fault=fault, retry_after=retry_after) for fault in faults]

    async def start(self, port: int = 0) -> str:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self.generate)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.address

    async def kill(self) -> None:
        """As the end of a process does: whatever is open is reset, and nobody listens."""
        for transport in list(self._open):
            transport.abort()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.at.append(asyncio.get_running_loop().time())
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "who?", "error_class": "unauthorized"}, status=401)
        body = await request.read()
        asked = orjson.loads(body)
        self.bodies.append(body)
        self.asked.append(asked)
        reply = self.replies.popleft() if self.replies else Reply()
        transport: Any = request.transport
        self._open.add(transport)
        try:
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._open.discard(transport)
        return await self._answer(request, asked, reply)

    async def _answer(self, request: web.Request, asked: dict[str, Any], reply: Reply) -> web.StreamResponse:
        fault = reply.fault
        if fault.isdigit():
            headers = {} if reply.retry_after is None else {"retry-after": reply.retry_after}
            return web.json_response({"error": "no"}, status=int(fault), headers=headers)
        if fault == "dead":
            return web.json_response({"error": "the worker exited", "error_class": "engine_dead"}, status=502)
        if fault == "too_long":
            told = {"error": "too long for the context", "error_class": "context_length_exceeded"}
            return web.json_response(told, status=400)
        if fault in ("html", "list"):
            return web.Response(text="<html>" if fault == "html" else "[]")
        whole = orjson.dumps(self._told(asked, reply))
        if fault in ("reset", "cut"):  # after sampling: before the answer, and in the middle of it
            if fault == "cut":
                response = web.StreamResponse(headers={"content-length": str(len(whole))})
                await response.prepare(request)
                await response.write(whole[:20])
            assert request.transport
            request.transport.abort()
        return web.Response(body=whole, content_type="application/json")

    def _told(self, asked: dict[str, Any], reply: Reply) -> dict[str, Any]:
        ids: list[Any] = [*self.tokenizer.encode(reply.text, add_special_tokens=False).ids, self.end]
        told: dict[str, Any] = {"finish": "stop" if len(ids) <= asked["max_tokens"] else "length"}
        ids = ids[: asked["max_tokens"]]
        logprobs: list[Any] = [LOGPROB] * len(ids)
        told |= {"ids": ids, "logprobs": logprobs, "versions": reply.versions or [[0, self.version]]}
        match reply.fault:
            case "no_versions":
                del told["versions"]
            case "null_version":
                told["versions"] = [[0, None]]
            case "late_version":
                told["versions"] = [[1, "3"]]
            case "falling_versions":
                told["versions"] = [[0, "3"], [0, "4"]]
            case "version_after_the_end":
                told["versions"] = [[0, "3"], [len(ids), "4"]]
            case "numbers_as_versions":
                told["versions"] = [3]
            case "no_ids":
                told["ids"] = None
            case "words":
                ids[0] = "hello"
            case "true":
                ids[0] = True
            case "negative":
                ids[0] = -1
            case "out_of_vocab":
                ids[0] = 99_999_999
            case "no_integer_is_so_long":
                ids[0] = 1 << 40
            case "empty":
                ids.clear()
                logprobs.clear()
            case "too_many":
                ids += [self.end] * asked["max_tokens"]
                logprobs += [LOGPROB] * asked["max_tokens"]
            case "no_logprobs":
                told["logprobs"] = None
            case "short_logprobs":
                logprobs.pop()
            case "nan":
                logprobs[0] = None
            case "positive":
                logprobs[0] = 0.5
            case "minus_infinity":
                logprobs[0] = -9999.0
            case "no_finish":
                told["finish"] = "abort"
        return told
