"""The recorder as a child process: started, asked over its control face, noticed when it dies, stopped.

Everything goes over a pipe and HTTP.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from cluster.recorder import CALL_S, READY_S, STOP_S, Ready, Recorder, RecorderError
from openforge.program_log import note_program

ROOT = Path(__file__).resolve().parent.parent


class RecorderProcess(Recorder):
    """See `cluster.recorder.Recorder`. `settings` is what it is told but for its secret."""

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        super().__init__(log)
        self._secret = secrets.token_urlsafe(32)
        self._settings = {**settings, "control_secret": self._secret}
        self._process: asyncio.subprocess.Process | None = None
        self._http: aiohttp.ClientSession | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> Ready:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        argv = (sys.executable, "-P", "-m", "proxy_addons")
        note_program(argv)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
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
            line = await asyncio.wait_for(process.stdout.readline(), READY_S)
            told = orjson.loads(line)
        except (TimeoutError, ValueError, OSError) as error:
            raise RecorderError(f"the recorder did not start: {self._tail()}", hint=f"see {self._log}") from error
        names = ("recorder_id", "proxy_port", "site_port", "admin_port", "pid")
        self.ready = Ready(**{name: told[name] for name in names}, ca_path=Path(told["ca_path"]))
        self._http = aiohttp.ClientSession(
            base_url=f"http://127.0.0.1:{self.ready.admin_port}",
            headers={"Authorization": f"Bearer {self._secret}"},
            timeout=aiohttp.ClientTimeout(total=CALL_S),
        )
        self._watch = asyncio.create_task(self._wait(process))
        return self.ready

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self.died.set()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        assert self._http is not None
        try:
            async with self._http.request(method, path, json=body) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RecorderError(f"the recorder does not answer {method} {path}: {error!r}") from error

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
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
