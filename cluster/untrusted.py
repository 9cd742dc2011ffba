"""The host's end of `untrusted`: starts a fresh sandbox for each command a verifier does not trust.

The agent's code can then neither write the reward nor read the tests: it runs beside the verifier, not below it. What
it leaves in the work folder is cleaned before the verifier goes on.
"""

import asyncio
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster.runtimes.base import Limits, Mount, Runner, Spec
from cluster.runtimes.bwrap import python_inside
from cluster.worktree import clean_work

SOCKET_INSIDE = "/opt/openforge/untrusted.sock"
PROGRAM_INSIDE = "/opt/openforge/bin/untrusted"
_REQUEST_BYTES = 1 << 17


class UntrustedCommands:
    """Serves one grader for as long as the context lasts; leaving it ends every command that still runs."""

    def __init__(self, runtime: Runner, folder: Path, work: Path, limits: Limits, env: dict[str, str]) -> None:
        self.runtime, self.work, self.limits, self.env = runtime, work, limits, env
        self.count = 0
        self.removed: list[str] = []
        self._socket_path, self._program = folder / "untrusted.sock", folder / "untrusted"
        self._tasks: set[asyncio.Task[None]] = set()

    def mounts(self) -> tuple[Mount, ...]:
        return Mount(self._socket_path, SOCKET_INSIDE), Mount(self._program, PROGRAM_INSIDE)

    async def __aenter__(self) -> Self:
        source = Path(__file__).parent / "runtimes" / "untrusted_client.py"
        self._program.write_text(f"#!{python_inside()} -IS\n{source.read_text()}")
        self._program.chmod(0o755)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._server.bind(str(self._socket_path))
        self._socket_path.chmod(0o666)
        self._server.listen(16)
        self._own(asyncio.create_task(self._accept()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server.close()

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            link, _ = await loop.sock_accept(self._server)
            self._own(asyncio.create_task(self._serve(link)))

    async def _serve(self, link: socket.socket) -> None:
        descriptors: list[int] = []
        folder: Path | None = None
        try:
            data, descriptors = await _receive(link)
            request = json.loads(data)
            if len(descriptors) != 3:
                return
            folder = self.runtime.new_folder()
            self.count += 1
            ended = await self.runtime.run(
                Spec(
                    argv=tuple(request["argv"]),
                    env=self.env,
                    folder=folder,
                    limits=self.limits,
                    cwd=str(request["cwd"]),
                    stdio=(descriptors[0], descriptors[1], descriptors[2]),
                    work=self.work,
                )
            )
            self.removed += clean_work(self.work, self.runtime.layout(folder).work)
            code = ended.code if ended.code is not None else 124 if ended.reason == "time" else 137
            with suppress(OSError):  # the verifier may be gone by now
                link.send(str(code).encode())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            link.close()
            if folder is not None:
                self.runtime.remove_folder(folder)


async def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(link)
    data, descriptors, _, _ = socket.recv_fds(link, _REQUEST_BYTES, 3)
    return data, list(descriptors)
