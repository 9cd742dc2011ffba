"""What tests of the recorder hold in their hands: a recorder that is up, and a client for both of its faces."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from fake_engine import FakeEngine

from openforge.journal.reader import read_records
from openforge.journal.writer import JournalWriter
from proxy_addons.service import Parts

SECRET = "control-secret"
ROLLOUT = "r1.task.react.0"
TOKEN = "t" * 24
BASH: dict[str, Any] = {
    "type": "function",
    "function": {"name": "bash", "description": "run", "parameters": {"type": "object", "properties": {}}},
}


async def until(condition: Callable[[], Any], limit_s: float = 10) -> Any:
    """What `condition` gives, once it gives something; a test cannot be told of it any other way."""
    async with asyncio.timeout(limit_s):
        while True:
            if found := condition():
                return found
            await asyncio.sleep(0.001)


@dataclass
class Desk:
    """A recorder that is up, and a client for both of its faces."""

    parts: Parts
    journal: JournalWriter
    run_dir: Path
    site: str
    admin: str
    http: aiohttp.ClientSession
    engine: FakeEngine

    async def control(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {SECRET}"}
        async with self.http.request(method, self.admin + path, json=body, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    async def register(self, rollout: str = ROLLOUT, token: str = TOKEN, **limits: Any) -> int:
        body = {"attempt": 0, "token": token, **limits}
        return (await self.control("PUT", f"/rollouts/{rollout}", body))[0]

    async def seal(self, rollout: str = ROLLOUT, attempt: int = 0) -> dict[str, Any]:
        status, told = await self.control("POST", f"/rollouts/{rollout}/seal", {"attempt": attempt})
        assert status == 200, told
        return dict(told)

    async def status(self) -> dict[str, Any]:
        return dict((await self.control("GET", "/status"))[1])

    async def post(self, body: Any, *, token: str = TOKEN, path: str = "/v1/chat/completions") -> tuple[int, Any]:
        async with self.http.post(f"{self.site}/r/{token}{path}", json=body) as response:
            if response.content_type == "text/event-stream":
                return response.status, await response.text()
            return response.status, await response.json(content_type=None)

    async def chat(self, messages: list[dict[str, Any]], *, token: str = TOKEN, **body: Any) -> dict[str, Any]:
        """A Chat Completions call that must succeed; its choice."""
        asked = {"model": "m", "messages": messages, "tools": [BASH], **body}
        status, told = await self.post(asked, token=token)
        assert status == 200, told
        return dict(told["choices"][0])

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        return list(read_records(self.run_dir, kinds or None))
