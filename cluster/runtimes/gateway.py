"""The host's end of the only way out of a sandbox: unix sockets that lead to the recorder's two ports.

Each sandbox has a pair of its own, so that one which opens connections without end meets its own bound and nobody
else's. Who calls is told by the token inside the call. When the recorder is started again it has other ports; new
connections go there.
"""

import asyncio
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MAX_LINKS = 64
_CHUNK = 1 << 16
_OPEN_FILES = 1 << 16  # not more: some programs close every descriptor up to the limit when they start


@dataclass
class Ports:
    """Where the recorder listens now."""

    proxy: int = 0
    site: int = 0


def raise_open_files() -> None:
    """Let this process open as many files as it may: every link of a sandbox takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Gateway:
    """Sockets `proxy.sock` and `site.sock` in `folder`, which must have a short path. Use as `async with`."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        self.proxy = folder / "proxy.sock"
        self.site = folder / "site.sock"
        self.refused = 0
        self._ports = ports
        self._servers: list[asyncio.Server] = []
        self._links: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._listen(self.proxy, lambda: self._ports.proxy)
        await self._listen(self.site, lambda: self._ports.site)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        for path in (self.proxy, self.site):
            path.unlink(missing_ok=True)

    async def _listen(self, path: Path, port: Callable[[], int]) -> None:
        async def on_link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.CancelledError):  # leaving ends the links; asyncio would print each one's traceback
                await self._link(port(), reader, writer)

        self._servers.append(await asyncio.start_unix_server(on_link, path))
        os.chmod(path, 0o666)  # reachable only through the mount: the folder itself is closed

    async def _link(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._links) >= MAX_LINKS:
            self.refused += 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, up_writer))
                    group.create_task(_copy(up_reader, writer))
            finally:
                up_writer.close()
        except* OSError:
            pass  # one side went away; closing both tells the other
        finally:
            self._links.discard(task)
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()
