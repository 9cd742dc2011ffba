"""What every engine asked over HTTP needs: a session that never hurries an answer, and replies that are objects."""

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from proxy_addons.engines.base import EngineError


def open_session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """A session for engines. No limit on the answer itself: a slow engine is not a failed one. Idle connections are
    given up before the server (uvicorn: 5 s) does, so that a request rarely meets a closing one."""
    return aiohttp.ClientSession(
        headers={**headers, "content-type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3),
    )


def read_object(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object of a reply. Raises EngineError `engine_garbage`."""
    try:
        reply = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise EngineError("engine_garbage", f"{where} did not answer with JSON") from None
    if not isinstance(reply, dict):
        raise EngineError("engine_garbage", f"{where} did not answer with an object")
    return reply


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token; none when there is none."""
    return {"authorization": f"Bearer {token}"} if token else {}


def shown(raw: bytes) -> str:
    """The start of an error body, for a person."""
    return raw[:300].decode(errors="replace")
