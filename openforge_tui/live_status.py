"""What the orchestrators of a store answer when they are asked how it stands. Knows no columns and no screen."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

_ANSWER_S = 5.0


async def ask_all(store_root: Path) -> list[dict[str, Any]]:
    """The /status of every run that is going on, each with the `pid` of its orchestrator, in the order of their ids.

    One that ended without cleaning up does not answer, and is left out; `openforge runs` shows it as broken off.
    """
    files = await asyncio.to_thread(lambda: sorted(store_root.glob("runs/*/orchestrator.json")))
    if not files:
        return []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as http:
        told = await asyncio.gather(*(_ask(http, file) for file in files))
    return [answer for answer in told if answer is not None]


async def _ask(http: aiohttp.ClientSession, file: Path) -> dict[str, Any] | None:
    try:
        face = json.loads(await asyncio.to_thread(file.read_text))
        headers = {"Authorization": f"Bearer {face['token']}"}
        async with http.get(f"{face['url']}/status", headers=headers) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return {**answer, "pid": face["pid"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, TimeoutError, aiohttp.ClientError):
        return None
