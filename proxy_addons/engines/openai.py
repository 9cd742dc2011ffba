"""Record mode: any provider that speaks one of our dialects. Bytes pass through; nothing is interpreted here."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from proxy_addons.engines.base import EngineError
from proxy_addons.settings import EngineSettings

# headers that belong to one connection, or that this hop decides
_HOP = {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"}
_OWN = _HOP | {"proxy-authorization", "proxy-authenticate", "proxy-connection", "accept-encoding", "x-session-id"}


class Provider:
    def __init__(self, settings: EngineSettings) -> None:
        self._base = settings.url.rstrip("/").removesuffix("/v1") + "/v1"
        self._key = settings.api_key
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=600),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3),
            auto_decompress=False,
            skip_auto_headers=("user-agent", "accept", "content-type"),
        )

    @asynccontextmanager
    async def send(
        self, path: str, headers: Mapping[str, str], body: bytes, session_id: str, token: str
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """POST `body` untouched. Only who asks changes: our key (or the harness's own), and the rollout for routing."""
        kept = {
            key: value
            for key, value in headers.items()
            if key.lower() not in _OWN and not key.lower().startswith("x-openforge-") and token not in value
        }
        if self._key:
            kept = {key: value for key, value in kept.items() if key.lower() not in ("authorization", "x-api-key")}
            kept["authorization"] = f"Bearer {self._key}"
        kept |= {"accept-encoding": "identity", "x-session-id": session_id}
        try:
            async with self._session.post(f"{self._base}{path}", headers=kept, data=body) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise EngineError("provider_unreachable", str(problem) or type(problem).__name__) from problem

    async def close(self) -> None:
        await self._session.close()
