"""The app in a browser: one app process a tab, behind a token, for this machine alone.

The page, its script and its fonts come from here; nothing is fetched from elsewhere. A request is answered when its
Host is this machine, its Origin (where it has one) is this page, and it brings the token: once in the address, then in
a cookie. Does not know what the app shows.
"""

import asyncio
import hmac
import io
import json
import os
import re
import secrets
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

from aiohttp import WSCloseCode, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from openforge.errors import InfraError
from openforge.program import end_with_parent

HOST = "127.0.0.1"
_HERE = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?")  # the port may be that of a tunnel
_LEAVE_S = 5.0  # for an app to end by itself, then again after SIGTERM
_PAGE = Path(__file__).with_name("web.html")
_OPENED = '<!doctype html><html lang="en"><title>openforge</title><p>Opening the app …</p>'


class Tab(AppService):
    """The app process of one tab, from the tab's opening to its end."""

    def __init__(self, argv: Sequence[str], websocket: web.WebSocketResponse, server: "WebApp") -> None:
        super().__init__(
            "",
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=self._leave,
            download_manager=server.download_manager,
        )
        self._argv, self._websocket = argv, websocket

    async def _leave(self) -> None:
        await self._websocket.close()

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._build_environment(width=width, height=height),
            start_new_session=True,  # Ctrl-C is ours to pass on, once
            preexec_fn=end_with_parent,
        )
        self._stdin = process.stdin
        return process

    async def run(self) -> None:
        """Until the app's end, which ends the tab, too, whatever the app died of."""
        try:
            await super().run()
            if self._process is not None and (code := await self._process.wait()):
                why = f"The app ended with exit code {code}; the terminal of `openforge web` says why."
                with suppress(ConnectionError):
                    await self.remote_write_bytes(f"\x1b[2J\x1b[H\r\n  {why}\r\n".encode())
        finally:
            await self._leave()

    async def stop(self) -> None:
        """End the process: it is asked, then told, then killed."""
        process, task = self._process, self._task
        if process is None or task is None:
            return
        self._task = None
        try:
            await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
            await self.send_meta({"type": "quit"})
            for number in (signal.SIGTERM, signal.SIGKILL):
                if await _ends(process):
                    break
                _signal(process, number)
            await process.wait()
        finally:
            _signal(process, signal.SIGKILL)  # when we are cancelled; and what it left in its group
            await task


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


async def _ends(process: Process) -> bool:
    try:
        async with asyncio.timeout(_LEAVE_S):
            await process.wait()
    except TimeoutError:
        return False
    return True


class WebApp(Server):
    """Serves `argv`, a command that runs a Textual app. `token` opens it; `port` is known once it listens."""

    def __init__(self, argv: Sequence[str], token: str) -> None:
        super().__init__("", host=HOST, port=0, title="openforge")
        self._argv, self._token = tuple(argv), token
        self._open: set[web.WebSocketResponse] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/?token={self._token}"

    async def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self.handle_index, name="index"),
                web.get("/web.js", self.handle_script, name="script"),
                web.get("/ws", self.handle_websocket, name="websocket"),
                web.get("/download/{key}", self.handle_download, name="download"),
                web.static("/static", self.statics_path, name="static"),
            ]
        )
        app.on_shutdown.append(self.on_shutdown)
        app.on_response_prepare.append(_add_headers)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """In front of every route, those that do not exist included."""
        if not _HERE.fullmatch(request.host):  # DNS rebinding: a name of somebody else's that leads here
            return _refused("This address is not this machine's own: open it as 127.0.0.1 or localhost.")
        if not _is_own_origin(request):
            return _refused("Another page asked for this: open the address that `openforge web` printed yourself.")
        cookie = f"openforge-{self.port}"  # cookies of one host are shared by all its ports
        if "token" in request.query and self._knows(request.query["token"]):
            # Not a redirect: after a click on another site's page it would come without a SameSite=Strict cookie.
            opened = web.Response(text=_OPENED, content_type="text/html", headers={"Refresh": "0; url=/"})
            opened.set_cookie(cookie, self._token, httponly=True, samesite="Strict", path="/")
            return opened
        if not self._knows(request.cookies.get(cookie, "")):
            return _refused("The token is missing or wrong: open the whole address that `openforge web` printed.")
        return await handler(request)

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self._token.encode())

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page: a terminal and nothing else."""
        size = to_int(request.query.get("fontsize", ""), 15)
        page = _PAGE.read_text(encoding="utf-8").replace("{FONT_SIZE}", str(size))
        return web.Response(text=page.replace("{HOST}", request.host), content_type="text/html")

    async def handle_script(self, request: web.Request) -> web.FileResponse:
        """What the page does besides what textual-serve's script does."""
        return web.FileResponse(_PAGE.with_suffix(".js"))

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """A tab: an app process that lives as long as this connection."""
        websocket = web.WebSocketResponse(heartbeat=15)
        await websocket.prepare(request)
        width, height = (to_int(request.query.get(name, ""), size) for name, size in (("width", 80), ("height", 24)))
        tab = Tab(self._argv, websocket, self)
        self._open.add(websocket)
        try:
            await tab.start(width, height)
            await self._process_messages(websocket, tab)
        finally:
            self._open.discard(websocket)
            await tab.stop()
        return websocket

    async def _process_messages(self, websocket: web.WebSocketResponse, tab: AppService) -> None:
        """What the page's script says, until the connection's end. Whoever says anything else is no page of ours."""
        async for message in websocket:
            if message.type is not WSMsgType.TEXT:
                continue
            match _parsed(message.data):
                case ["stdin", str(typed)]:
                    await tab.send_bytes(typed.encode(errors="replace"))
                case ["resize", {"width": int(width), "height": int(height)}]:
                    await tab.set_terminal_size(width, height)
                case ["ping", said]:
                    await websocket.send_json(["pong", said])
                case ["blur"]:
                    await tab.blur()
                case ["focus"]:
                    await tab.focus()
                case _:
                    print(f"a tab was closed: its browser sent {message.data[:80]!r}, which the page never does")
                    await websocket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"not a message of this page")

    async def on_shutdown(self, app: web.Application) -> None:
        """Close every tab, which ends its process."""
        await asyncio.gather(*(websocket.close(code=1001) for websocket in list(self._open)))


async def serve(
    argv: Sequence[str],
    *,
    port: int | None,
    listening: Callable[[str], None],
    say: Callable[[str], None],
    preferred: int = 8021,
) -> None:
    """Serve until cancelled; `listening` is told the address. Without a port: `preferred`, or a free one.

    What textual-serve prints goes to `say`. Raises InfraError when the port is taken.
    """
    app = WebApp(argv, secrets.token_urlsafe(24))
    runner = web.AppRunner(await app._make_app(), access_log=None, shutdown_timeout=3 * _LEAVE_S)
    await runner.setup()
    try:
        app.port = await _listen(runner, [port] if port is not None else [preferred, 0])
        listening(app.url)
        with redirect_stdout(_Lines(say)):
            await asyncio.Event().wait()
    finally:
        with redirect_stdout(_Lines(say)):
            await runner.cleanup()


async def _listen(runner: web.AppRunner, ports: Sequence[int]) -> int:
    """Listen on the first of `ports` that is free, and on no other."""
    for port in ports:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            why = error.strerror
        else:
            return int(runner.addresses[-1][1])
    raise InfraError(f"{HOST}:{ports[-1]} cannot be had: {why}", hint="openforge web --port 0")


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_own_origin(request: web.Request) -> bool:
    origin = request.headers.get("Origin")
    return origin is None or origin == f"http://{request.host}"


def _refused(why: str) -> web.Response:
    return web.Response(status=403, text=f"{why}\n")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(
        {
            "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
            f"font-src 'self'; img-src data:; connect-src 'self' ws://{request.host}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
    )


class _Lines(io.TextIOBase):
    """A stream whose lines are said."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> int:
        if text.strip():
            self._say(text.rstrip())
        return len(text)
