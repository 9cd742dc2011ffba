"""What the orchestrators of a store answer when they are asked how it stands. Knows no columns and no screen."""

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from cluster.http import FILE_NAME
from cluster.run_lock import is_held

ANSWER_S = 5.0  # then it has failed


class Answer(NamedTuple):
    """What one said: `told` is its /status, None when it does not answer as one does. `nobody`: nothing listens where
    its file says, or what does has the run in another folder."""

    told: dict[str, Any] | None
    pid: int = 0
    nobody: bool = False


def session() -> aiohttp.ClientSession:
    """What `ask` asks with."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S))


def faces(store_root: Path) -> list[Path]:
    """The files in which orchestrators say where they listen, in the order of their runs' ids."""
    return sorted(store_root.glob(f"runs/*/{FILE_NAME}"))


async def ask_all(store_root: Path) -> list[dict[str, Any]]:
    """The /status of every run that is going on, each with the `pid` of its orchestrator, in the order of their ids.

    One that ended without cleaning up does not answer, and is left out; `openforge runs` shows it as broken off.
    """
    files = await asyncio.to_thread(faces, store_root)
    if not files:
        return []
    async with session() as http:
        answers = await asyncio.gather(*(ask(http, file) for file in files))
    return [{**answer.told, "pid": answer.pid} for answer in answers if answer.told is not None]


async def ask(http: aiohttp.ClientSession, file: Path) -> Answer:
    """The /status of the orchestrator of one file; of a copied folder it is that of the first, and so nobody."""
    pid = 0
    try:
        face = json.loads(await asyncio.to_thread(file.read_text))
        pid = int(face["pid"])
        if not await asyncio.to_thread(is_held, file.parent):
            return Answer(None, pid, nobody=True)
        headers = {"Authorization": f"Bearer {face['token']}"}
        async with http.get(f"{face['url']}/status", headers=headers) as response:
            response.raise_for_status()
            told = await response.json()
            return Answer(told if isinstance(told, dict) else None, pid)
    except aiohttp.ClientConnectorError:
        return Answer(None, pid, nobody=True)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, TimeoutError, aiohttp.ClientError):
        return Answer(None, pid)
