"""Ending what goes on, or holding it: a run, or some of its rollouts, by asking their orchestrators. Shared by commands
and app."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from cluster.run_lock import is_held
from openforge.errors import InfraError, UsageError
from openforge.store.connect import find_run
from openforge.store.transcript import find_rollout

_LIMIT_S = 60


async def cancel(store_root: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """End each run or rollout named (ids, prefixes, `latest`); the accounts of what was ended. What had ended before
    stays as it was. Raises UsageError, InfraError."""
    ended: list[dict[str, Any]] = []
    async with _session() as http:
        for name in names:
            run_id, rollout_id = find_rollout(store_root, name) if "." in name else (find_run(store_root, name), "")
            path = f"/rollouts/{rollout_id}" if rollout_id else "/rollouts?run=cancelled"
            told = await _ask(http, store_root / "runs" / run_id, "DELETE", path)
            ended += [told] if rollout_id else told["rollouts"]
    return ended


async def pause(store_root: Path, names: Sequence[str], *, on: bool = True) -> list[dict[str, Any]]:
    """Begin no rollout of these runs until they are told to go on (`on` False); how each stands now.

    What is under way comes to its end. A trainer waits for its rollouts, and keeps what it has in memory. Raises
    UsageError, InfraError.
    """
    async with _session() as http:
        runs = [store_root / "runs" / find_run(store_root, name) for name in names]
        return [await _ask(http, run_dir, "PUT" if on else "DELETE", "/pause") for run_dir in runs]


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LIMIT_S))


async def _ask(http: aiohttp.ClientSession, run_dir: Path, method: str, path: str) -> dict[str, Any]:
    try:
        face = json.loads((run_dir / "orchestrator.json").read_text())
        url, token = f"{face['url']}{path}", face["token"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        if is_held(run_dir):
            summary = f"run {run_dir.name} is just starting (or ending): its orchestrator does not listen"
            raise InfraError(summary, hint="the same again in a moment") from None
        raise UsageError(f"run {run_dir.name} is not under way", hint="openforge status lists what is") from None
    if not is_held(run_dir):  # its address would lead to the run that was copied
        summary = f"the orchestrator of {run_dir.name} (pid {face.get('pid')}) does not answer: it died, or has the run"
        raise InfraError(f"{summary} in another folder, of which this is a copy", hint=f"openforge logs {run_dir.name}")
    try:
        async with http.request(method, url, headers={"Authorization": f"Bearer {token}"}) as response:
            told: dict[str, Any] = await response.json()
    except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
        summary = f"the orchestrator of {run_dir.name} (pid {face.get('pid')}) does not answer: {error}"
        raise InfraError(summary, hint=f"is it still there? openforge logs {run_dir.name}") from None
    if response.status != 200:
        raise UsageError(told.get("error", f"refused with status {response.status}"), hint=told.get("hint", ""))
    return told
