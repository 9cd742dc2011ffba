"""Turns what happened to a call into journal records. Every call gets one `call.open` and one close or abort.

A conversation is stored once: the wire body names the parent call for the items that it repeats (compared as JSON, so
that what is rebuilt is what was sent), and values above 1 KB are blobs.
"""

import logging
from array import array
from collections import Counter
from typing import Any

import orjson

from openforge.journal.records import JournalError, RecordError
from openforge.journal.writer import JournalWriter
from openforge.tokens.graph import Match, Turn
from openforge.tokens.message import Message
from openforge.wire import HISTORIES
from proxy_addons.dialects.base import Answer, Request, WireError, dumps
from proxy_addons.rollouts import Call, Rollout

log = logging.getLogger("openforge.recorder")

_SMALL = 1024  # bytes of JSON that stay in the record itself
_SHORT = 2048  # characters of text that do
_STRANGERS = 1000  # refusals of unknown callers that are journalled; all are counted
_HARMLESS = (("tool_choice", "auto"), ("logprobs", False), ("top_logprobs", 0))  # asked for, and no loss


class Ledger:
    def __init__(self, journal: JournalWriter, mode: str) -> None:
        self.journal = journal
        self.mode = mode
        self.aborted: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.breaks: Counter[str] = Counter()

    @property
    def broken(self) -> str:
        return self.journal.broken

    def opened(self, rollout: Rollout, call: Call, model: str, host: str) -> None:
        self.append(
            "call.open",
            rollout,
            call_id=call.call_id,
            dialect=call.dialect,
            mode=self.mode,
            stream=call.stream,
            model=model,
            host=host,
        )

    def closed(
        self,
        rollout: Rollout,
        call: Call,
        *,
        request: Request | None,
        body: bytes,
        response: bytes,
        status: int,
        match: Match | None,
        answer: Answer | None,
        auxiliary: bool,
        **fields: Any,
    ) -> None:
        """The commit of a call. Raises JournalError or RecordError; then nothing of it counts."""
        parent = match.parent if match else None
        reason = str(match.reason) if match else None
        stored: dict[str, Any] = {}
        if request is not None:
            stored["request"], digests = self._request(rollout, request, parent)
            stored["dropped_tools"] = list(request.dropped_tools) or None
            stored["max_tokens"] = fields.pop("max_tokens", None) or request.max_tokens
        else:
            stored["request"], items = self._unread(body)
            if answer is not None:
                stored["messages"] = [self._message(items, answer.message)]
        if match is not None and answer is not None:
            stored["messages"] = self._messages(match, answer.message)
        if answer is not None:
            stored["finish_reason"] = answer.finish
            stored["prompt_tokens"] = answer.prompt_tokens
            stored["completion_tokens"] = answer.completion_tokens
        self.append(
            "call.close",
            rollout,
            call_id=call.call_id,
            dialect=call.dialect,
            mode=self.mode,
            stream=call.stream,
            status=status,
            parent_call_id=parent.call_id if parent else None,
            break_reason=reason,
            auxiliary=auxiliary,
            request_bytes=len(body),
            response=self._response(response),
            duration_s=round(call.age_s, 4),
            **stored,
            **fields,
        )
        self.breaks[reason or "unread"] += 1
        if request is not None:
            rollout.items[call.call_id] = digests
            if parent is not None:
                rollout.items.pop(parent.call_id, None)

    def aborted_call(self, rollout: Rollout, call: Call, error: WireError, detail: str = "") -> None:
        """A call that gave no answer. Never raises: it is often a broken journal that is being reported."""
        rollout.totals.aborted += 1
        rollout.totals.limited += error.code.startswith("limit_")
        self.aborted[error.code] += 1
        try:
            self.append(
                "call.abort",
                rollout,
                call_id=call.call_id,
                error_class=error.code,
                detail=(detail or error.message)[:2000],
                duration_s=round(call.age_s, 4),
                status=error.status,
            )
        except (JournalError, RecordError) as problem:
            log.error("%s of %s is not in the journal: %s", error.code, call.call_id, problem.summary)

    def refused(self, rollout: Rollout | None, error: WireError) -> None:
        """A call that was not let in. Callers that nobody knows are journalled up to a number, to save the disk."""
        self.refusals[error.code] += 1
        if rollout is not None:
            rollout.totals.refused += 1
        if rollout is None and self.refusals[error.code] > _STRANGERS:
            return
        try:
            self.append("call.refused", rollout, error_class=error.code, detail=error.message[:2000])
        except (JournalError, RecordError) as problem:
            log.error("refusal %s is not in the journal: %s", error.code, problem.summary)

    def egress(self, rollout: Rollout | None, host: str, port: int, rule: str | None, method: str) -> None:
        decision = "refuse" if rule is None else "allow"
        try:
            self.append("egress", rollout, host=host, port=port, decision=decision, rule=rule, method=method)
        except JournalError as problem:
            log.error("egress of %s to %s:%d is not in the journal: %s", decision, host, port, problem.summary)

    def append(self, kind: str, rollout: Rollout | None, **fields: Any) -> None:
        if rollout is None:
            self.journal.append(kind, **fields)
        else:
            self.journal.append(kind, rollout_id=rollout.id, attempt=rollout.attempt, **fields)

    def _request(self, rollout: Rollout, request: Request, parent: Turn | None) -> tuple[dict[str, Any], "array[int]"]:
        items = request.wire.get(request.history)
        raws = request.raws
        digests = array("q", map(hash, raws))
        shared = _common(digests, rollout.items.get(parent.call_id, digests[:0])) if parent else 0
        stored = {key: self._small(value) for key, value in request.wire.items() if key != request.history}
        if isinstance(items, list):
            kept: list[Any] = [self._small(item, raw) for item, raw in zip(items[shared:], raws[shared:], strict=True)]
            before = [{"$history": {"parent_call_id": parent.call_id, "items": shared}}] if parent and shared else []
            stored[request.history] = before + kept
        else:
            stored[request.history] = self._small(items)
        return stored, digests

    def _unread(self, body: bytes) -> tuple[Any, int]:
        """A body that no dialect could read, as it was sent, and how many items its conversation has. Each item is
        kept for itself, so that what comes back on the next call (an image, as a rule) is stored once."""
        try:
            wire = orjson.loads(body)
            stored = {key: self._small(value) for key, value in wire.items() if key not in HISTORIES}
            items = {key: value for key in HISTORIES if isinstance(value := wire.get(key), list)}
            stored |= {key: wire[key] for key in HISTORIES if key in wire}
            stored |= {key: [self._small(item) for item in value] for key, value in items.items()}
        except (ValueError, AttributeError, WireError):  # no JSON object, or too deep for a record
            text = body.decode(errors="replace")
            return text if len(body) <= _SMALL else {"$blob": self.journal.blob(text)}, 0
        return stored, sum(map(len, items.values()))

    def _small(self, value: Any, raw: bytes | None = None) -> Any:
        if isinstance(value, int | float | None):
            return value
        raw = dumps(value) if raw is None else raw
        return value if len(raw) <= _SMALL else {"$blob": self.journal.blob(raw)}

    def _response(self, body: bytes) -> Any:
        if len(body) > _SMALL:
            return {"$blob": self.journal.blob(body)}
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            return body.decode(errors="replace")

    def _messages(self, match: Match, answer: Message) -> list[dict[str, Any]]:
        added = enumerate((*match.new, answer), start=match.start)
        return [self._message(position, message) for position, message in added]

    def _message(self, position: int, message: Message) -> dict[str, Any]:
        long = len(message.text) > _SHORT
        row: dict[str, Any] = {"position": position, "role": message.role, "text": None if long else message.text}
        if long:
            row["text_blob"] = self.journal.blob(message.text)
        if message.reasoning:
            row["reasoning"] = message.reasoning
        if message.tool_calls:
            row["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
            ]
        if message.tool_call_id:
            row["tool_call_id"] = message.tool_call_id
        return row


def overridden(asked: dict[str, Any], given: dict[str, Any]) -> dict[str, Any] | None:
    """What the harness asked for and was not given."""
    left = {key: value for key, value in asked.items() if given.get(key) != value and (key, value) not in _HARMLESS}
    return left or None


def _common(ours: "array[int]", theirs: "array[int]") -> int:
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return index
    return min(len(ours), len(theirs))
