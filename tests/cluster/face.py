"""The orchestrator's HTTP face as a trainer sees it: found by its file, asked with its token."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from cluster.orchestrator import Orchestrator


class Face:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer. `body` is sent as Python's JSON, in which NaN is a word."""
        data = None if body is None else json.dumps(body)
        async with self._http.request(method, path, data=data) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> Any:
        """The answer of a GET that must succeed."""
        status, told = await self.ask("GET", path)
        assert status == 200, told
        return told

    async def rollout(self, task: object, harness: str = "react", **asked: Any) -> dict[str, Any]:
        """Ask for a rollout; its view."""
        status, told = await self.ask("POST", "/rollouts", {"task": str(task), "harness": harness, **asked})
        assert status == 202, told
        return dict(told)

    async def ended(self, rollout_id: str, within_s: float = 30) -> dict[str, Any]:
        """Its view once it is over."""
        told = await self.get(f"/rollouts/{rollout_id}?wait={within_s}")
        assert told["finished"], told
        return dict(told)


@asynccontextmanager
async def face(orchestrator: Orchestrator) -> AsyncIterator[Face]:
    told = json.loads((orchestrator.run_dir / "orchestrator.json").read_text())
    headers = {"Authorization": f"Bearer {told['token']}"}
    async with aiohttp.ClientSession(told["url"], headers=headers) as http:
        yield Face(http)
