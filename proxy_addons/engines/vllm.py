"""vLLM's `/v1/completions`, token in, token out (request shape: facts measured on 0.30).

`logprobs: 0` is the sampled token only, and `return_tokens_as_token_ids` gives its id without sending the prompt back.
The end token is part of both. No seed is ever sent: it kills the CPU engine. A generation that the engine aborted (new
weights came) is continued from its tokens, each stretch with its own weight version. Closing the connection aborts.
"""

import asyncio
import time
from array import array
from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson

from openforge.tokens.graph import Ids
from proxy_addons.engines.base import EngineError, EngineInfo, Generation, Piece, check, logprob_array
from proxy_addons.engines.wire import bearer, open_session, read_object, shown
from proxy_addons.settings import EngineSettings, Sampling

_CONTINUATIONS = 16  # aborted without a new token so often in a row: the engine is stuck


class Vllm:
    def __init__(self, settings: EngineSettings, sampling: Sampling, stop_ids: Sequence[int], vocab_size: int) -> None:
        self._url = settings.url.rstrip("/").removesuffix("/v1") + "/v1"
        self._settings = settings
        self._vocab_size = vocab_size
        self._fixed = {
            "model": settings.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "stop_token_ids": list(stop_ids),
        }
        self._session = open_session(bearer(settings.api_key))
        self.retries = 0

    async def generate(
        self, prompt_json: bytes, prompt_len: int, max_tokens: int, session_id: str, call_id: str
    ) -> Generation:
        ids: Ids = array("i")
        logprobs = array("f")
        versions: list[tuple[int, str]] = []
        stuck = 0
        started = time.monotonic()
        while True:
            ask = {**self._fixed, "max_tokens": max_tokens - len(ids), "session_id": session_id, "request_id": call_id}
            if versions:
                ask["request_id"] = f"{call_id}-{len(versions)}-{stuck}"
            sampled = b"," + orjson.dumps(ids.tolist())[1:-1] if ids else b""
            body = b"".join((orjson.dumps(ask)[:-1], b',"prompt":[', prompt_json, sampled, b"]}"))
            reply = await self._post(body)
            piece = check(_read(reply, prompt_len + len(ids), self._settings), self._vocab_size, max_tokens - len(ids))
            stuck = 0 if piece.ids else stuck + 1
            if piece.ids:
                versions += ((len(ids) + offset, version) for offset, version in piece.versions)
            ids += piece.ids
            logprobs += piece.logprobs
            if piece.finish != "abort":
                return Generation(ids, logprobs, piece.finish, tuple(versions), time.monotonic() - started)
            if len(ids) >= max_tokens:
                return Generation(ids, logprobs, "length", tuple(versions), time.monotonic() - started)
            if stuck >= _CONTINUATIONS:
                raise EngineError("engine_aborted", f"the engine stopped this call {stuck} times without a new token")
            await asyncio.sleep(0.05 * stuck)

    async def score(self, ids: Sequence[int]) -> list[float | None]:
        """The logprob of each id given those before it; None for the first."""
        ask = {"model": self._settings.model, "max_tokens": 0, "echo": True, "logprobs": 0, "prompt": list(ids)}
        reply = await self._post(orjson.dumps(ask))
        try:
            scores = list(reply["choices"][0]["logprobs"]["token_logprobs"])
        except (KeyError, IndexError, TypeError):
            raise EngineError("logprobs_missing", "the engine did not score the prompt") from None
        if len(scores) != len(ids):
            raise EngineError("logprob_len_mismatch", f"{len(scores)} scores for {len(ids)} ids")
        return scores

    async def info(self) -> EngineInfo:
        """What the server says of its model; raises EngineError when it does not serve ours."""
        try:
            async with self._session.get(f"{self._url}/models", timeout=aiohttp.ClientTimeout(total=10)) as response:
                listed = orjson.loads(await response.read()).get("data") or []
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as problem:
            raise EngineError("engine_unreachable", f"{self._url}/models: {_say(problem)}") from problem
        models = {entry.get("id"): entry for entry in listed if isinstance(entry, dict)}
        if self._settings.model not in models:
            raise EngineError(
                "wrong_model", f"{self._url} serves {sorted(map(str, models))}, not {self._settings.model}"
            )
        return EngineInfo(models[self._settings.model].get("max_model_len"), self._settings.weight_version)

    async def probe(self, token: int) -> EngineInfo:
        """Ask for one token, so that an engine that could not be recorded is found at the start. Raises EngineError."""
        info = await self.info()
        await self.generate(b"%d" % token, 1, 1, "probe", "probe")
        return info

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, body: bytes) -> dict[str, Any]:
        for attempt in (1, 2):
            try:
                async with self._session.post(f"{self._url}/completions", data=body) as response:
                    raw = await response.read()
                    status = response.status
                break
            except (aiohttp.ClientConnectorError, aiohttp.ClientPayloadError) as problem:
                raise EngineError("engine_unreachable", f"{self._url}: {_say(problem)}") from problem
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as problem:
                # a kept connection that the server was just closing: it never sent a byte, so asking again is safe
                if attempt == 2:
                    raise EngineError("engine_disconnected", f"{self._url}: {_say(problem)}") from problem
                self.retries += 1
            except (aiohttp.ClientError, TimeoutError) as problem:
                raise EngineError("engine_unreachable", f"{self._url}: {_say(problem)}") from problem
        if status != 200:
            if status == 400 and b"context length" in raw:
                raise EngineError("context_length_exceeded", shown(raw))
            kind = "engine_refused" if 400 <= status < 500 and status != 429 else "engine_unavailable"
            raise EngineError(kind, f"{self._url} answered {status}: {shown(raw)}")
        return read_object(raw, self._url)


def _read(reply: dict[str, Any], prompt_len: int, settings: EngineSettings) -> Piece:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError("choices", "the engine did not give exactly one answer")
    choice = choices[0]
    bundle = choice.get("logprobs")
    if not isinstance(bundle, dict) or not isinstance(bundle.get("token_logprobs"), list):
        raise EngineError("logprobs_missing", "the engine gave no logprobs")
    names = bundle.get("tokens")
    if not isinstance(names, list):
        raise EngineError("ids_missing", "the engine gave no token ids")
    try:
        ids: Ids = array("i", [int(name.removeprefix("token_id:")) for name in names if name.startswith("token_id:")])
        logprobs = logprob_array(bundle["token_logprobs"])
    except (AttributeError, ValueError, TypeError, OverflowError):
        raise EngineError("ids_missing", "the engine's tokens are not ids") from None
    if len(ids) != len(names):
        raise EngineError("ids_missing", "some of the engine's tokens have no id")
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length", "abort"):
        raise EngineError("finish_missing", f"the engine's finish reason is {finish!r}")
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    for key, ours in (("completion_tokens", len(ids)), ("prompt_tokens", prompt_len)):
        if counts.get(key) not in (None, ours):
            raise EngineError("ids_usage_mismatch", f"the engine counts {counts[key]} {key}, we have {ours} ids")
    return Piece(ids, logprobs, finish, ((0, str(reply.get("weight_version") or settings.weight_version)),))


def _say(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__
