"""An orchestrator's face that answers /status with what a test wants, or hangs, or dies and comes back."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from aiohttp import web

from cluster.run_lock import RunLock


def call(
    number: int, rollout_id: str, *, shard: int = 0, age_s: float = 1.0, stage: str = "sampling"
) -> dict[str, Any]:
    """A call in flight, as /status tells it."""
    return {
        "call_id": f"c{number:08d}",
        "rollout_id": rollout_id,
        "dialect": "chat" if number % 2 else "anthropic",
        "stage": stage,
        "stream": number % 3 > 0,
        "age_s": age_s,
        "shard": shard,
        "recorder_id": f"recorder-{shard}",
    }


class FakeOrchestrator:
    """`start`, `die` (it leaves its file, as a killed one does), `end` (it does not)."""

    def __init__(self, store_root: Path, run_id: str, pid: int | None = None) -> None:
        self.run_id, self.pid = run_id, os.getpid() if pid is None else pid
        self.calls: list[dict[str, Any]] = []
        self.rollouts = {"queued": 2, "running": 3, "done": 4}
        self.open = asyncio.Event()  # cleared, it hangs
        self.open.set()
        self.asked = 0
        self._file = store_root / "runs" / run_id / "orchestrator.json"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(self._file.parent)

    async def start(self) -> None:
        self._lock.take()
        app = web.Application()
        app.router.add_get("/status", self._status)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._file.write_text(json.dumps({"url": url, "token": f"token-{self.run_id}", "pid": self.pid}))

    async def die(self) -> None:
        self._lock.drop()
        await self._runner.cleanup()

    async def end(self) -> None:
        self._file.unlink()
        self._lock.drop()
        await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer token-{self.run_id}":
            return web.json_response({"error": "no"}, status=401)
        self.asked += 1
        await self.open.wait()
        return web.json_response(
            {"run_id": self.run_id, "rollouts": self.rollouts, "calls": self.calls, "isolation": "pod"}
        )
