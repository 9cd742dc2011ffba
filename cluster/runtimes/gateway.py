"""The host's end of the only way out of a sandbox: unix sockets that lead to the recorder's two ports.

One pair of sockets serves every sandbox, since who calls is told by the token inside the call. When the recorder is
started again it has other ports; `point` leads new connections there.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

_CHUNK = 1 << 16


class Gateway:
    """Sockets `proxy.sock` and `site.sock` in `folder`, which must have a short path."""

    def __init__(self, folder: Path) -> None:
        self.proxy = folder / "proxy.sock"
        self.site = folder / "site.sock"
        self.proxy_port = 0
        self.site_port = 0
        self._servers: list[asyncio.Server] = []
        self._links: set[asyncio.Task[None]] = set()

    def point(self, proxy_port: int, site_port: int) -> None:
        self.proxy_port, self.site_port = proxy_port, site_port

    async def start(self) -> None:
        for path in (self.proxy, self.site):
            server = await asyncio.start_unix_server(self._on_proxy if path == self.proxy else self._on_site, path)
            path.chmod(0o666)  # reachable only through the mount: the folder itself is closed
            self._servers.append(server)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _on_proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._link(self.proxy_port, reader, writer)

    async def _on_site(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._link(self.site_port, reader, writer)

    async def _link(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
