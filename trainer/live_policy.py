"""The policy while it is being trained, over HTTP: token ids in, token ids out, the weight version of every span.

Runs in veRL's agent-loop worker, beside its server client, and is what the recorder's `trainer` engine asks. A weight
sync aborts what veRL's servers are generating; here it goes on from the tokens that were there, under the new weights,
and the answer says which ids came from which. So a harness never sees a cut answer. Too many at once are pushed back
with 429, which the recorder honours while the harness is kept alive.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.versions import Versions

log = logging.getLogger("openforge.live_policy")

_STUCK = 64  # aborted so often in a row without a new token: the servers behind are not coming back
_PAUSE_S = 0.05  # between an abort and the next try; veRL parks requests itself while it syncs
_RETRY_S = 0.2


class Piece(Protocol):
    """What veRL's server client gives: its TokenOutput."""

    token_ids: Sequence[int]
    log_probs: Sequence[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class Servers(Protocol):
    """veRL's server client, with one request at a time that may come back aborted."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Piece: ...


class Ask(BaseModel):
    """One call. `prompt` is whole: nothing is kept here between calls."""

    model_config = ConfigDict(extra="forbid")

    session_id: str
    request_id: str
    prompt: list[int] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    stop_token_ids: list[int] = []


class LivePolicy:
    """`limit`: calls answered at once, more are pushed back. `versions`: what this training's weights are called."""

    def __init__(self, servers: Servers, *, max_model_len: int, limit: int, versions: Versions) -> None:
        self._servers = servers
        self._max_model_len = max_model_len
        self._limit = limit
        self._versions = versions
        self.token = secrets.token_urlsafe(32)
        self.address = ""
        self.running = self.continued = self.pushed_back = 0
        self.newest = versions.from_step
        self.dead = asyncio.Event()

    @property
    def version(self) -> str:
        """Of the newest weights that have answered."""
        return self._versions.name(self.newest)

    async def start(self, host: str = "127.0.0.1") -> None:
        """Listen on a free port."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/info", self._info)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0, backlog=1024).start()
        self.address = f"http://{host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _info(self, request: web.Request) -> web.Response:
        if not self._known(request):
            return _refuse(401, "unauthorized", "the live policy's token is needed here")
        told = {"max_model_len": self._max_model_len, "weight_version": self.version, "running": self.running}
        return _json(200, told)

    async def _generate(self, request: web.Request) -> web.Response:
        if not self._known(request):
            return _refuse(401, "unauthorized", "the live policy's token is needed here")
        if self.running >= self._limit:
            self.pushed_back += 1
            return _refuse(429, "busy", f"{self.running} calls are being answered", _RETRY_S)
        self.running += 1  # before the body is read: others arrive meanwhile
        try:
            ask = Ask.model_validate_json(await request.read())
            if len(ask.prompt) >= self._max_model_len:
                detail = f"{len(ask.prompt)} ids, the context has {self._max_model_len}"
                return _refuse(400, "context_length_exceeded", detail)
            return await self._ask_servers(ask)
        except ValidationError as error:
            return _refuse(400, "invalid_request", str(error))
        finally:
            self.running -= 1

    async def _ask_servers(self, ask: Ask) -> web.Response:
        try:
            return await self._answer(ask)
        except ValueError as error:  # of this request: vLLM refuses an id that it has no row for; others go on
            return _refuse(400, "invalid_request", str(error)[:500])
        except Exception as error:  # whatever Ray raises when an engine is gone: the recorder is told, the trainer ends
            log.exception("a generation failed")
            self.dead.set()
            return _refuse(502, "engine_dead", f"{type(error).__name__}: {error}"[:500])

    async def _answer(self, ask: Ask) -> web.Response:
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[tuple[int, str]] = []
        most = min(ask.max_tokens, self._max_model_len - len(ask.prompt))
        stuck = 0
        while True:
            piece = await self._servers.generate(
                ask.session_id, prompt_ids=ask.prompt + ids, sampling_params=_sampling(ask, most - len(ids))
            )
            aborted = piece.stop_reason in ("abort", "aborted")
            if piece.token_ids:
                self._note(versions, len(ids), piece)
                ids += piece.token_ids
                logprobs += piece.log_probs or ()
            if not aborted or len(ids) >= most:
                break
            stuck = 0 if piece.token_ids else stuck + 1
            if stuck > _STUCK:
                return _refuse(503, "policy_paused", f"aborted {stuck} times without a new id", _RETRY_S)
            self.continued += 1
            await asyncio.sleep(_PAUSE_S)
        stopped = bool(ids) and (len(ids) < most or ids[-1] in ask.stop_token_ids)
        finish = "stop" if stopped else "length"
        return _json(200, {"ids": ids, "logprobs": logprobs, "finish": finish, "versions": versions})

    def _note(self, versions: list[tuple[int, str]], offset: int, piece: Piece) -> None:
        step = piece.extra_fields.get("global_steps")
        if step is None:
            raise RuntimeError("veRL's server did not say which weights it has")
        self.newest = max(self.newest, step)
        version = self._versions.name(step)
        if not versions or versions[-1][1] != version:
            versions.append((offset, version))

    def _known(self, request: web.Request) -> bool:
        told = request.headers.get("authorization", "").encode()
        return hmac.compare_digest(told, f"Bearer {self.token}".encode())


def _sampling(ask: Ask, max_tokens: int) -> dict[str, Any]:
    return {
        "max_tokens": max_tokens,
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "top_k": ask.top_k,
        "stop_token_ids": ask.stop_token_ids,
        "logprobs": True,
        "detokenize": False,
    }


def _refuse(status: int, error_class: str, detail: str, retry_s: float | None = None) -> web.Response:
    response = _json(status, {"error": detail, "error_class": error_class})
    if retry_s is not None:
        response.headers["Retry-After"] = f"{retry_s:g}"
    return response


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
