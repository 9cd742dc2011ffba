"""The harness's face: answers model calls over HTTP.

Who calls is told by the path (`/r/<token>/…`), by the API key, or by the proxy in front (headers that only it can
write). While the policy thinks, a harness that asked for a stream gets comments; from then on a failure cuts the
connection, since a stream that ends cleanly is taken as a whole answer. Before that, trouble that may pass is 503 with
Retry-After: harnesses change their tools, or give up, after a 400. A client that leaves cancels its call.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

from openforge.errors import OpenForgeError
from openforge.ids import new_call_id
from proxy_addons.dialects import DIALECTS
from proxy_addons.dialects.base import KEEP_ALIVE, Dialect, Request, WireError, openai_error
from proxy_addons.engines.base import EngineError
from proxy_addons.ledger import Ledger
from proxy_addons.record import Head, Record
from proxy_addons.rollouts import Call, Registry, Rollout
from proxy_addons.train import Train

log = logging.getLogger("openforge.recorder")

RELAY, TOKEN, HOST = "x-openforge-relay", "x-openforge-token", "x-openforge-host"
KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


class Caller(NamedTuple):
    rollout: Rollout
    path: str
    host: str


class Site:
    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        answering: Train | Record,
        *,
        relay_secret: str,
        model: str,
        keep_alive_s: float,
        max_body_bytes: int,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._answering = answering
        self._relay_secret = relay_secret
        self._model = model
        self._keep_alive_s = keep_alive_s
        self._max_body_bytes = max_body_bytes
        self.client_gone = 0

    def fit(self, max_model_len: int | None) -> None:
        """The server may have less room than the settings say."""
        if isinstance(self._answering, Train) and max_model_len is not None:
            self._answering.max_model_len = min(self._answering.max_model_len, max_model_len)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self._max_body_bytes)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("upgrade", "").lower() == "websocket":
            return _refusal(WireError(426, "websocket", "WebSocket is not served here: use HTTP"), None)
        dialect: Dialect | None = None
        try:
            caller = self._caller(request)
            dialect = _dialect(caller.path)
            if dialect is None or request.method != "POST":
                return self._other(request, caller.path)
            if self._ledger.broken:
                raise WireError(
                    503, "recorder_broken", f"the journal is broken: {self._ledger.broken}", retry_after_s=5
                )
            async with self._body(request, caller.rollout) as body:
                return await self._call(request, caller, dialect, body)
        except WireError as error:
            return _refusal(error, dialect)

    def _caller(self, request: web.Request) -> Caller:
        headers = request.headers
        path = request.path
        told, host = "", request.host
        if same_secret(headers.get(RELAY, ""), self._relay_secret):
            told, host = headers.get(TOKEN, ""), headers.get(HOST, "")
        if path.startswith("/r/"):
            token, _, rest = path[3:].partition("/")
            path = f"/{rest}"
            told = told or token
        if not told:
            told = api_key(headers.get)
        rollout = self._registry.by_token(told) if told else None
        if rollout is None:
            error = WireError(401, "unknown_rollout", "no rollout has this token")
            self._ledger.refused(None, error)
            raise error
        return Caller(rollout, path, host)

    def _other(self, request: web.Request, path: str) -> web.Response:
        if request.method == "GET" and _below_v1(path) == "/models":
            entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "openforge"}
            return web.json_response({"object": "list", "data": [entry]})
        return _refusal(WireError(404, "not_found", f"{request.method} {path} is no model call"), None)

    @asynccontextmanager
    async def _body(self, request: web.Request, rollout: Rollout) -> AsyncIterator[bytes]:
        """What the harness sent, read only if the call may be let in. It counts as held until the call has ended."""
        read = bytearray()
        size = 0
        try:
            try:
                rollout.check_limits()
                self._check_size(rollout, request.content_length or 0)
                async with asyncio.timeout_at(rollout.deadline):
                    async for part in request.content.iter_any():
                        read += part
                        size += len(part)
                        rollout.body_bytes += len(part)
                        self._check_size(rollout, size)
            except (WireError, TimeoutError) as problem:
                error = problem if isinstance(problem, WireError) else _out_of_time()
                self._ledger.refused(rollout, error)
                raise error from None
            body = bytes(read)
            read.clear()
            yield body
        finally:
            rollout.body_bytes -= size

    def _check_size(self, rollout: Rollout, size: int) -> None:
        """One limit for a request, and for all that one rollout makes the recorder hold at a time."""
        limit = f"{self._max_body_bytes >> 20} MiB"
        if size > self._max_body_bytes:
            raise WireError(413, "request_too_large", f"the request is larger than {limit}")
        if rollout.body_bytes > self._max_body_bytes:
            told = f"this rollout's open requests are larger than {limit}"
            raise WireError(429, "too_much_at_once", told, retry_after_s=1)

    async def _call(self, request: web.Request, caller: Caller, dialect: Dialect, body: bytes) -> web.StreamResponse:
        rollout = caller.rollout
        if isinstance(self._answering, Record):
            return await _Relay(self, request, caller, dialect, body).run(self._answering)
        try:
            asked = dialect.read_request(body)
        except WireError as error:
            self._ledger.refused(rollout, error)
            raise
        call = self.admit(caller, dialect, asked.stream, asked.model)
        call.task = asyncio.create_task(self._answer(self._answering, rollout, call, dialect, asked, body))
        try:
            return await self._reply(request, call, call.task, asked.stream)
        except asyncio.CancelledError:
            self.client_gone += 1
            call.cause = call.cause or WireError(499, "client_gone", "the harness closed the connection")
            call.task.cancel()
            raise

    def admit(self, caller: Caller, dialect: Dialect, stream: bool, model: str) -> Call:
        """Let a call in and say so in the journal, or raise the WireError that says why not."""
        call = Call(new_call_id(), dialect.name, stream)
        try:
            caller.rollout.admit(call)
        except WireError as error:
            self._ledger.refused(caller.rollout, error)
            raise
        try:
            self._ledger.opened(caller.rollout, call, model, caller.host)
        except OpenForgeError as problem:
            caller.rollout.in_flight.pop(call.call_id, None)
            raise WireError(503, "recorder_broken", problem.summary, retry_after_s=5) from problem
        return call

    async def _answer(
        self, train: Train, rollout: Rollout, call: Call, dialect: Dialect, asked: Request, body: bytes
    ) -> bytes:
        """The wire answer of an admitted call; every way out but success is a WireError and a `call.abort`."""
        try:
            async with asyncio.timeout_at(rollout.deadline):
                return await train.answer(rollout, call, dialect, asked, body)
        except (Exception, asyncio.CancelledError) as problem:
            error = explain(problem, call)
            self._ledger.aborted_call(rollout, call, error, detail=str(problem))
            if isinstance(problem, asyncio.CancelledError) and call.cause is None:
                raise  # this process is ending
            raise error from problem
        finally:
            rollout.in_flight.pop(call.call_id, None)

    async def _reply(
        self, request: web.Request, call: Call, task: asyncio.Task[bytes], stream: bool
    ) -> web.StreamResponse:
        headers = {"x-request-id": call.call_id, "cache-control": "no-store"}
        done, _ = await asyncio.wait({task}, timeout=self._keep_alive_s if stream else None)
        if done:
            kind = "text/event-stream" if stream else "application/json"
            return web.Response(body=task.result(), content_type=kind, headers=headers)
        response = web.StreamResponse(headers={**headers, "content-type": "text/event-stream"})
        await response.prepare(request)
        while not task.done():
            await response.write(KEEP_ALIVE)
            await asyncio.wait({task}, timeout=self._keep_alive_s)
        if task.exception() is not None:
            cut(request)
            return response
        await response.write(task.result())
        await response.write_eof()
        return response


class _Relay:
    """One call in record mode: the provider's bytes, as they come, on the harness's connection."""

    def __init__(self, site: Site, request: web.Request, caller: Caller, dialect: Dialect, body: bytes) -> None:
        self._site = site
        self._request = request
        self._caller = caller
        self._dialect = dialect
        self._body = body
        self._response: web.StreamResponse | None = None

    async def run(self, record: Record) -> web.StreamResponse:
        rollout = self._caller.rollout
        asked = record.read_request(self._dialect, self._body)
        stream, model = (asked.stream, asked.model) if asked else (False, "")
        call = self._site.admit(self._caller, self._dialect, stream, model)
        headers = dict(self._request.headers)
        call.task = asyncio.current_task()
        try:
            async with asyncio.timeout_at(rollout.deadline):
                await record.relay(rollout, call, self._dialect, asked, headers, self._body, self._start, self._send)
        except (Exception, asyncio.CancelledError) as problem:
            gone = isinstance(problem, asyncio.CancelledError) and call.cause is None
            if gone or isinstance(problem, ConnectionError):
                self._site.client_gone += 1
                call.cause = WireError(499, "client_gone", "the harness closed the connection")
            error = explain(problem, call)
            self._site._ledger.aborted_call(rollout, call, error, detail=str(problem))
            if self._response is None and not gone:
                raise error from problem
            cut(self._request)
            if gone:
                raise
            return self._response or web.Response(status=error.status)
        finally:
            rollout.in_flight.pop(call.call_id, None)
        assert self._response is not None
        await self._response.write_eof()
        return self._response

    async def _start(self, head: Head) -> None:
        self._response = web.StreamResponse(status=head.status, headers=head.headers)
        await self._response.prepare(self._request)

    async def _send(self, data: bytes) -> None:
        assert self._response is not None
        await self._response.write(data)


def explain(problem: BaseException, call: Call) -> WireError:
    """What the harness is told. Trouble on our side is 503, so that it asks again."""
    if isinstance(problem, WireError):
        return problem
    if isinstance(problem, asyncio.CancelledError):
        return call.cause or WireError(503, "recorder_stopped", "the recorder is stopping", retry_after_s=1)
    if isinstance(problem, TimeoutError):
        return _out_of_time()
    if isinstance(problem, EngineError):
        if problem.error_class == "context_length_exceeded":
            return WireError(400, problem.error_class, problem.summary)
        return WireError(503, problem.error_class, problem.summary, retry_after_s=1)
    if isinstance(problem, OpenForgeError):
        return WireError(503, "recorder_broken", problem.summary, retry_after_s=5)
    log.error("a bug in call %s", call.call_id, exc_info=problem)
    return WireError(503, "internal", f"the recorder failed: {type(problem).__name__}", retry_after_s=1)


def _out_of_time() -> WireError:
    return WireError(403, "limit_time", "this rollout has used its time")


def api_key(get: Callable[[str], str | None]) -> str:
    """The key that a request carries, in whichever header its client puts it."""
    for name in KEYS:
        value = get(name)
        if value:
            return value.partition(" ")[2].strip() if value[:7].lower() == "bearer " else value.strip()
    return ""


def same_secret(told: str, secret: str) -> bool:
    """Compared in constant time. Header bytes that are no UTF-8 come as surrogates."""
    return hmac.compare_digest(told.encode(errors="surrogateescape"), secret.encode())


def cut(request: web.Request) -> None:
    """End the connection so that no client takes it for a clean end."""
    if request.transport is not None:
        request.transport.abort()


def _dialect(path: str) -> Dialect | None:
    below = _below_v1(path)
    return next((dialect for dialect in DIALECTS if dialect.path == below), None)


def _below_v1(path: str) -> str:
    """Both `/v1/…` and `/v1/v1/…` (a base URL that already had it) are the same place."""
    while path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/")


def _refusal(error: WireError, dialect: Dialect | None) -> web.Response:
    body = dialect.write_error(error) if dialect is not None else openai_error(error)
    headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s is not None else {}
    return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)
