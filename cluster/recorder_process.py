"""The recorder as a child process: started, asked over its control face, noticed when it dies, stopped.

Everything goes over a pipe and HTTP; nothing of the recorder's code is imported. The control secret is made here and
never enters a sandbox.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from openforge.errors import InfraError

_READY_S = 90.0
_STOP_S = 15.0
_CALL_S = 30.0
ROOT = Path(__file__).resolve().parent.parent


class RecorderError(InfraError):
    """The recorder did not start, is gone, or refused what the orchestrator asked."""


@dataclass(frozen=True)
class Ready:
    """What a recorder said when it was ready."""

    recorder_id: str
    proxy_port: int
    site_port: int
    admin_port: int
    ca_path: Path
    pid: int


@dataclass(frozen=True)
class SealSummary:
    """What a rollout's calls came to. `limited`: those of the aborted that were over a limit once they were read.
    `invalid_calls`: tool calls of its answers that no harness could have run."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    samples: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    breaks: dict[str, int]
    aborted: int
    limited: int
    refused_calls: int
    invalid_calls: int = 0


class RecorderProcess:
    """One start of a recorder. `died` is set when the process has ended, whatever the reason."""

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        self._secret = secrets.token_urlsafe(32)
        self._settings = {**settings, "control_secret": self._secret}
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._http: aiohttp.ClientSession | None = None
        self._watch: asyncio.Task[None] | None = None
        self.died = asyncio.Event()
        self.ready: Ready | None = None

    async def start(self) -> Ready:
        """Start and wait for the ready line. RecorderError with the end of its log when it does not come."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "proxy_addons"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        try:
            return await self._handshake(self._process)
        except BaseException:
            await self.stop()
            raise

    async def _handshake(self, process: asyncio.subprocess.Process) -> Ready:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(orjson.dumps(self._settings, default=str) + b"\n")
            await process.stdin.drain()  # and stays open: the recorder ends when it closes
            line = await asyncio.wait_for(process.stdout.readline(), _READY_S)
            told = orjson.loads(line)
        except (TimeoutError, ValueError, OSError) as error:
            raise RecorderError(f"the recorder did not start: {self._tail()}", hint=f"see {self._log}") from error
        names = ("recorder_id", "proxy_port", "site_port", "admin_port", "pid")
        self.ready = Ready(**{name: told[name] for name in names}, ca_path=Path(told["ca_path"]))
        self._http = aiohttp.ClientSession(
            base_url=f"http://127.0.0.1:{self.ready.admin_port}",
            headers={"Authorization": f"Bearer {self._secret}"},
            timeout=aiohttp.ClientTimeout(total=_CALL_S),
        )
        self._watch = asyncio.create_task(self._wait(process))
        return self.ready

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self.died.set()

    async def set_policy(self, addresses: Sequence[str], token: str, weight_version: str) -> None:
        """Tell the engine `trainer` where the live policy is from now on (no address: away, calls wait). Idempotent.
        RecorderError when the recorder is gone or has another engine."""
        body = {"addresses": list(addresses), "token": token, "weight_version": weight_version}
        await self._call("PUT", "/policy", body)

    async def register(self, rollout_id: str, body: Mapping[str, Any]) -> None:
        await self._call("PUT", f"/rollouts/{rollout_id}", body)

    async def seal(self, rollout_id: str, attempt: int) -> SealSummary:
        """Close the rollout: calls under way are cancelled, later ones refused. Asking again gives the same answer."""
        told = await self._call("POST", f"/rollouts/{rollout_id}/seal", {"attempt": attempt})
        return SealSummary(**{name: told[name] for name in SealSummary.__dataclass_fields__})

    async def drop(self, rollout_id: str) -> None:
        await self._call("DELETE", f"/rollouts/{rollout_id}")

    async def rollout(self, rollout_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/rollouts/{rollout_id}")

    async def status(self) -> dict[str, Any]:
        return await self._call("GET", "/status")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self._http is None or self.died.is_set():
            raise RecorderError("the recorder is not running", hint=f"see {self._log}")
        try:
            async with self._http.request(method, path, json=body) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RecorderError(f"the recorder does not answer {method} {path}: {error!r}") from error
        if response.status >= 300:
            text = data[:300].decode(errors="replace")
            raise RecorderError(f"the recorder refused {method} {path}: {response.status} {text}")
        told = orjson.loads(data) if data else {}
        return told if isinstance(told, dict) else {}

    async def stop(self) -> None:
        """End the process: politely first, so that it seals its journal. Idempotent."""
        if self._http is not None:
            await self._http.close()
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if self._watch is not None:
            await self._watch
        self.died.set()

    def _tail(self) -> str:
        with suppress(OSError):
            return self._log.read_bytes()[-1500:].decode(errors="replace").strip()
        return ""
