"""The orchestrator as the trainer sees it: rollouts are asked for, awaited and read over HTTP.

A connection that fails is tried again: the orchestrator may be busy, and when it is gone for good this process is
ended from outside. Nothing here knows veRL.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Self

import aiohttp
import orjson

from openforge.errors import InfraError, OpenForgeError

URL, TOKEN = "OPENFORGE_ORCHESTRATOR_URL", "OPENFORGE_ORCHESTRATOR_TOKEN"
"""Environment variables that say where it is; the token stands in no configuration."""
EVENT = "openforge: "
"""What a line of the trainer's output begins with when it tells `openforge train` something, as JSON."""

_WAIT_S = 30.0
_TRIES = 8
_BACKOFF_S = 0.25


class Orchestrator:
    """Use within one event loop. Raises InfraError when it cannot be reached, OpenForgeError for what it refuses."""

    def __init__(self, url: str, token: str) -> None:
        self._http = aiohttp.ClientSession(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            connector=aiohttp.TCPConnector(limit=0),
        )

    @classmethod
    def from_environment(cls) -> Self:
        url, token = os.environ.get(URL), os.environ.get(TOKEN)
        if not url or not token:
            raise InfraError(f"{URL} and {TOKEN} are not set", hint="start training with `openforge train`")
        return cls(url, token)

    async def rollout(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a rollout (or find the one with the same `key`) and wait for its end; the view of it."""
        view = await self.ask("POST", "/rollouts", request)
        while not view["finished"]:
            view = await self.ask("GET", f"/rollouts/{view['rollout_id']}?wait={_WAIT_S:g}")
        return view

    async def samples(self, rollout_id: str) -> list[dict[str, Any]]:
        """Its training rows, the main one last."""
        return list((await self.ask("GET", f"/rollouts/{rollout_id}/samples"))["samples"])

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request, tried again on a broken connection. All of them may be asked twice without harm."""
        data = orjson.dumps(body) if body is not None else None
        for attempt in range(_TRIES):
            try:
                async with self._http.request(method, path, data=data) as response:
                    raw, status = await response.read(), response.status
                break
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt + 1 == _TRIES:
                    raise InfraError(f"the orchestrator does not answer {method} {path}: {error!r}") from error
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
        told = _read(raw)
        if status >= 500:
            raise InfraError(f"the orchestrator could not {method} {path}: {status} {told.get('error', '')}")
        if status >= 400:
            raise OpenForgeError(f"the orchestrator refused {method} {path}: {status} {told.get('error', '')}")
        return told

    async def close(self) -> None:
        await self._http.close()


def _read(raw: bytes) -> dict[str, Any]:
    """What was answered; aiohttp's own refusals are plain text."""
    try:
        told = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {"error": raw.decode(errors="replace")[:500]}
    return told if isinstance(told, dict) else {"error": f"{told!r}"[:500]}
