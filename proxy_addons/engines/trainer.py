"""The live policy: the model that a trainer is changing while it answers.

Asked by ids like any engine, but its trainer may be syncing weights, or be away and come back somewhere else. None of
that is a failed call: the client waits as long as its caller does (a rollout has a deadline, sampling has none), looks
up the address again, and asks again. An answer may be sampled by several weight versions, and says so per stretch.
Cancelling closes the connection; an answer that veRL's servers have begun they finish for nobody, since its client
cannot call one back.

Where the policy is comes from outside (`move`), never from an answer. A rollout sticks to one of several addresses, so
that the prefix cache behind it is warm. How answers are sampled is not known here.
"""

import asyncio
import math
import random
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import aiohttp
import orjson

from openforge.tokens.graph import Ids, Versions
from proxy_addons.engines.base import EngineError, Generation, Piece, check, logprob_array
from proxy_addons.engines.wire import bearer, open_session, read_object, shown
from proxy_addons.settings import EngineSettings, Policy, Sampling

_BACK_OFF_S = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)  # the last one again and again
_SHORTEST_S = 0.05  # a server that says "again in 0 s" is not asked in a tight loop
_BUSY = (429, 503)
_STRANGER = 401  # a trainer that came back has a new token, which we are told a moment later


class LivePolicy:
    """The engine `trainer`. `retries` counts requests that found nobody who knows us, `busy` those that were told to
    come again."""

    def __init__(self, settings: EngineSettings, sampling: Sampling, stop_ids: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._fixed = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": list(stop_ids),
        }
        self._session = open_session({})
        self._known = asyncio.Event()
        self._under_way: dict[asyncio.Timeout, str] = {}  # address by request
        self.retries = 0
        self.busy = 0
        addresses = (settings.url,) if settings.url else ()
        self.policy = Policy(weight_version=settings.weight_version)
        self.move(Policy(addresses=addresses, token=settings.api_key, weight_version=settings.weight_version))

    def move(self, policy: Policy) -> None:
        """Ask there from now on. Requests under way at an address that is no longer listed are asked again."""
        self.policy = policy
        if policy.addresses:
            self._known.set()
        else:
            self._known.clear()
        now = asyncio.get_running_loop().time()
        for request, address in list(self._under_way.items()):
            if address not in policy.addresses:
                del self._under_way[request]
                request.reschedule(now)

    async def generate(
        self, prompt_json: bytes, prompt_len: int, max_tokens: int, session_id: str, call_id: str
    ) -> Generation:
        ask = {**self._fixed, "max_tokens": max_tokens, "session_id": session_id, "request_id": call_id}
        body = b"".join((orjson.dumps(ask)[:-1], b',"prompt":[', prompt_json, b"]}"))
        address, status, raw = await self._post(session_id, body)
        if status != 200:
            raise _refusal(address, status, raw)
        piece = check(_read(read_object(raw, address)), self._vocab_size, max_tokens)
        assert piece.finish != "abort"  # _read holds it
        return Generation(piece.ids, piece.logprobs, piece.finish, piece.versions)

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, session_id: str, body: bytes) -> tuple[str, int, bytes]:
        """Address, status and body of the first reply that is not "come again". Waits as long as its caller does."""
        failures = 0
        while True:
            await self._known.wait()
            address, token = _stick(self.policy.addresses, session_id), self.policy.token
            told: float | None = None
            try:
                async with self._while_listed(address):
                    async with self._session.post(f"{address}/generate", data=body, headers=bearer(token)) as response:
                        raw = await response.read()
                if response.status not in (*_BUSY, _STRANGER):
                    return address, response.status, raw
                if response.status in _BUSY:
                    self.busy += 1
                    told = _retry_after_s(response.headers)
                else:
                    self.retries += 1
            except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
                self.retries += 1
            if told is None:
                await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)] * random.uniform(0.5, 1))
                failures += 1
            else:
                await asyncio.sleep(max(told, _SHORTEST_S) * random.uniform(1, 1.1))  # never earlier than told
                failures = 0

    @asynccontextmanager
    async def _while_listed(self, address: str) -> AsyncIterator[None]:
        """TimeoutError in the block once `move` was told that the policy is no longer there: a machine that is gone
        does not close its connections."""
        async with asyncio.timeout(None) as request:
            self._under_way[request] = address
            try:
                yield
            finally:
                self._under_way.pop(request, None)


def _stick(addresses: Sequence[str], session_id: str) -> str:
    return addresses[crc32(session_id.encode()) % len(addresses)]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds of a Retry-After header, which may be fractional; None for anything else."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _refusal(address: str, status: int, raw: bytes) -> EngineError:
    """Why there will be no answer, by the class that the policy itself gives."""
    try:
        told = read_object(raw, address)
    except EngineError:
        told = {}
    error_class = told.get("error_class")
    if not isinstance(error_class, str) or not error_class:
        error_class = "engine_refused" if 400 <= status < 500 else "engine_unavailable"
    said = told.get("error")
    return EngineError(error_class, f"{address} answered {status}: {said if isinstance(said, str) else shown(raw)}")


def _read(reply: dict[str, Any]) -> Piece:
    ids, logprobs, finish = reply.get("ids"), reply.get("logprobs"), reply.get("finish")
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise EngineError("ids_missing", "the policy's ids are not a list of whole numbers")
    if not isinstance(logprobs, list) or not set(map(type, logprobs)) <= {int, float, type(None)}:
        raise EngineError("logprobs_missing", "the policy gave no list of logprobs")
    if finish not in ("stop", "length"):
        raise EngineError("finish_missing", f"the policy's finish reason is {finish!r}")
    return Piece(_ids(ids), logprob_array(logprobs), finish, _versions(reply.get("versions")))


def _ids(values: list[int]) -> Ids:
    try:
        return array("i", values)
    except OverflowError:
        raise EngineError("token_out_of_vocab", "an id that no vocabulary has") from None


def _versions(value: Any) -> Versions:
    """What a reply says of its weight versions; `check` refuses those that leave ids without one."""
    spans = [] if value is None else value
    if not isinstance(spans, list) or not all(isinstance(span, list) and len(span) == 2 for span in spans):
        raise EngineError("bad_versions", "the policy's versions are not pairs of offset and name")
    if not all(type(offset) is int and isinstance(name, str | None) for offset, name in spans):
        raise EngineError("bad_versions", "the policy's versions are not pairs of offset and name")
    return tuple((offset, name or "") for offset, name in spans)
