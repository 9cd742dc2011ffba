"""Record mode: bytes pass through to a provider and back untouched, and are kept.

The answer is forwarded event by event; from the event after which a harness may hang up it is held back until the
record is committed. With a tokenizer at hand the ids are made as well: the conversation as the policy would have been
shown it, and the answer as the policy would have written it (no logprobs: nobody sampled those ids).
"""

import logging
import re
from array import array
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import ClientError, ClientResponse

from proxy_addons.dialects.base import Answer, Dialect, Request, WireError
from proxy_addons.engines.base import EngineError
from proxy_addons.engines.openai import Provider
from proxy_addons.ledger import Ledger
from proxy_addons.prompts import Prompt, Prompts
from proxy_addons.render.base import Renderer
from proxy_addons.rollouts import Call, Rollout
from proxy_addons.side_calls import is_side_call
from proxy_addons.tool_calls import count_invalid

log = logging.getLogger("openforge.recorder")


class Head(NamedTuple):
    """Status and headers of the provider's answer."""

    status: int
    headers: dict[str, str]


Start = Callable[[Head], Awaitable[None]]
Send = Callable[[bytes], Awaitable[None]]

_BLANK = re.compile(rb"\r?\n\r?\n")  # ends an event
_KEPT = ("content-type", "retry-after", "x-request-id", "request-id", "openai-processing-ms", "cache-control")


class Record:
    def __init__(self, provider: Provider, prompts: Prompts, renderer: Renderer | None, ledger: Ledger) -> None:
        self._provider = provider
        self._prompts = prompts
        self._renderer = renderer
        self._ledger = ledger
        self.unread = 0

    async def relay(
        self,
        rollout: Rollout,
        call: Call,
        dialect: Dialect,
        request: Request | None,
        headers: dict[str, str],
        body: bytes,
        start: Start,
        send: Send,
    ) -> None:
        """Answer a call from the provider through `start` and `send`. Raises EngineError when the provider breaks."""
        if request is not None and request.n > 1 and self._renderer is not None:
            raise WireError(400, "unsupported_parameter", "n > 1 is not supported: ask once for each answer")
        prompt = await self._prompts.prepare(rollout, request) if request is not None else None
        call.stage = "waiting"
        async with self._provider.send(dialect.path, headers, body, rollout.id, rollout.token) as response:
            await start(Head(response.status, {key: response.headers[key] for key in _KEPT if key in response.headers}))
            if response.status != 200:
                await self._pass_error(rollout, call, response, send)
                return
            call.stage = "answering"
            received, held = await _forward(response, dialect, send)
        call.stage = "committing"
        answer = self._read_answer(dialect, response.content_type, received)
        if answer is None and "event-stream" in response.content_type:
            raise EngineError("incomplete_answer", "the provider's stream ended before its end")
        self._commit(rollout, call, request, body, prompt, answer, received)
        await send(held)

    async def _pass_error(self, rollout: Rollout, call: Call, response: ClientResponse, send: Send) -> None:
        body = await response.read()
        said = f"the provider answered {response.status}: {body[:500].decode(errors='replace')}"
        self._ledger.aborted_call(rollout, call, WireError(response.status, "provider_status", said))
        await send(body)

    def read_request(self, dialect: Dialect, body: bytes) -> Request | None:
        """None when our dialect cannot read it: it is the provider who answers, so it still passes through."""
        try:
            return dialect.read_request(body)
        except WireError as problem:
            self.unread += 1
            log.warning("a %s request is recorded unread: %s", dialect.name, problem.message)
            return None

    def _read_answer(self, dialect: Dialect, content_type: str, body: bytes) -> Answer | None:
        try:
            return dialect.read_answer(content_type, body)
        except WireError as problem:
            self.unread += 1
            log.warning("a %s answer is recorded unread: %s", dialect.name, problem.message)
            return None

    def _commit(
        self,
        rollout: Rollout,
        call: Call,
        request: Request | None,
        body: bytes,
        prompt: Prompt | None,
        answer: Answer | None,
        received: bytes,
    ) -> None:
        rollout.check_open()
        ids = array("i", self._renderer.encode_answer(answer.message)) if self._renderer and answer else array("i")
        side = request is not None and is_side_call(rollout, request)
        made = self._renderer is not None and prompt is not None and answer is not None
        self._ledger.closed(
            rollout,
            call,
            request=request,
            body=body,
            response=received,
            status=200,
            match=prompt.match if prompt else None,
            answer=answer,
            auxiliary=side,
            input_ids=prompt.input_ids if made and prompt else None,
            prompt_len=prompt.length if made and prompt else None,
            completion_ids=ids if made else None,
            sampling=request.sampling if request else None,
        )
        if prompt is not None and answer is not None:
            rollout.graph.commit(
                prompt.match,
                call_id=call.call_id,
                input_ids=prompt.input_ids,
                answer=answer.message,
                answer_ids=ids,
                logprobs=None,
                auxiliary=side,
            )
        if request is not None and answer is not None:
            rollout.count_invalid(call, count_invalid(answer.message, request))
        added = len(prompt.input_ids) + len(ids) if made and prompt else 0
        sampled = (answer.completion_tokens if answer else None) or len(ids)
        rollout.add(added or sampled, (answer.prompt_tokens if answer else None) or 0, sampled)


async def _forward(response: ClientResponse, dialect: Dialect, send: Send) -> tuple[bytes, bytes]:
    """Send whole events on as they come; returns everything received and the end that was held back."""
    received = bytearray()
    sent = 0
    streamed = "event-stream" in response.content_type
    try:
        async for chunk in response.content.iter_any():
            received += chunk
            if streamed:
                size, over = _releasable(bytes(received[sent:]), dialect.terminal)
                streamed = not over  # from the last event on everything waits for the commit
                if size:
                    await send(bytes(received[sent : sent + size]))
                    sent += size
    except (ClientError, TimeoutError) as problem:
        raise EngineError("incomplete_answer", f"the provider's answer broke off: {problem}") from problem
    return bytes(received), bytes(received[sent:])


def _releasable(pending: bytes, terminal: tuple[bytes, ...]) -> tuple[int, bool]:
    """How many bytes are whole events before the last one, and whether the last one is there."""
    at = 0
    for blank in _BLANK.finditer(pending):
        if any(mark in pending[at : blank.end()] for mark in terminal):
            return at, True
        at = blank.end()
    return at, False
