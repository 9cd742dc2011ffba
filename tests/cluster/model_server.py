"""A chat-completions server that says what a test wants: shell commands by rollout, then "Done."."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable

from aiohttp import web


class ModelServer:
    """`commands(session, n)`: a rollout's n-th command, None = done; `broken_for`: HTTP 500; `hang`: no answer.
    `said`: what the commands of the last rollout printed."""

    def __init__(self) -> None:
        self.commands: Callable[[str, int], str | None] = lambda session, n: None
        self.broken_for = ""
        self.hang = False
        self.calls: dict[str, int] = defaultdict(int)
        self.called = asyncio.Event()
        self.said: list[str] = []

    async def start(self, host: str = "127.0.0.1") -> None:
        app = web.Application()
        self.routes(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}/v1"

    def routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._chat)

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        session = request.headers.get("x-session-id", "")
        self.calls[session] += 1
        self.called.set()
        if self.hang:
            await asyncio.Event().wait()
        if self.broken_for and self.broken_for in session:
            return web.json_response({"error": {"message": "broken"}}, status=500)
        self.said = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        done = len(self.said)
        command = self.commands(session, done)
        message: dict[str, object] = {"role": "assistant", "content": None if command else "Done."}
        if command:
            call = {"name": "shell", "arguments": json.dumps({"command": command})}
            message["tool_calls"] = [{"id": f"call_{done}", "type": "function", "function": call}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if command else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )
