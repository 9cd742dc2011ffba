"""What every wire dialect gives: a request read into canonical form, and an answer written as the harness expects it.

Knows JSON and server-sent events, and how to complain in a way that names the field. Does not know tokens, rollouts or
sockets. Readers accept unknown keys and unknown enum values (providers add them all the time) and refuse, by name, what
they would otherwise have to drop in silence.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import orjson

from openforge.tokens.key import message_key
from openforge.tokens.message import Message, Tool

Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]

# What a harness may ask about sampling; the run decides, and what was asked otherwise is recorded.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "logprobs", "top_logprobs"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "tool_choice", "response_format", "text"),
    *("reasoning", "reasoning_effort"),
)


class WireError(Exception):
    """An answer that is an error: HTTP `status`, the provider's own error `code`, and a sentence for a person."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """How a canonical tool was declared on the wire, so that a call to it can be written back the same way."""

    name: str
    namespace: str = ""
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A model call in canonical form. `wire` is the parsed body, kept for the record only; `history` names the list in
    it that holds the conversation, and `raws` are the items of that list as JSON. `keys` are
    those of the messages (openforge.tokens.key), when looking them up was cheaper than making them."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    stream: bool
    model: str
    max_tokens: int | None
    sampling: dict[str, Any]
    history_items: int
    dropped_tools: tuple[str, ...] = ()
    n: int = 1
    origins: Mapping[str, ToolOrigin] = field(default_factory=dict)
    wire: dict[str, Any] = field(default_factory=dict)
    history: str = "messages"
    raws: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said. Token counts are None when nobody told (never 0)."""

    message: Message
    finish: Finish
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Dialect(Protocol):
    """One provider API. `terminal` are the marks of the event after which a client may hang up."""

    name: str
    path: str
    terminal: tuple[bytes, ...]

    def read_request(self, body: bytes) -> Request: ...

    def read_answer(self, content_type: str, body: bytes) -> Answer: ...

    def write_answer(self, answer: Answer, request: Request, call_id: str) -> bytes: ...

    def write_stream(self, answer: Answer, request: Request, call_id: str) -> bytes: ...

    def write_error(self, error: WireError) -> bytes: ...


KEEP_ALIVE = b": keep-alive\n\n"  # an event-stream comment: ignored by every parser, resets idle timers


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def bad(message: str, *, code: str = "invalid_request") -> WireError:
    return WireError(400, code, message)


def parse_json(body: bytes) -> Any:
    """JSON of any kind. A lone surrogate (a JavaScript harness cut a string in the middle of an emoji) becomes `?`."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as first:
        try:
            text = json.dumps(json.loads(body), ensure_ascii=False, allow_nan=False)
            return orjson.loads(text.encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise bad(f"the body is not JSON: {first}") from None


def dumps(value: Any) -> bytes:
    """JSON of what was read. Too deep to be stored is refused: orjson reads 1,024 levels and writes 254."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise bad("the body is nested too deep") from None


class Known:
    """Messages by their JSON: a history comes back on every call, and to look it up costs less than to read it."""

    _ITEM_BYTES = 4096
    _TOTAL_BYTES = 32 << 20

    def __init__(self, read: Callable[[Any, str], Message]) -> None:
        self._read = read
        self._messages: dict[bytes, tuple[Message, bytes]] = {}
        self._size = 0

    def read(self, raw: bytes, item: Any, where: str) -> tuple[Message, bytes]:
        """The message and its key."""
        found = self._messages.get(raw)
        if found is None:
            message = self._read(item, where)
            found = message, message_key(message)
            if len(raw) <= self._ITEM_BYTES:
                if self._size > self._TOTAL_BYTES:
                    self._messages.clear()
                    self._size = 0
                self._messages[raw] = found
                self._size += len(raw)
        return found


def as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(f"{where} must be an object")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """A list; null counts as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad(f"{where} must be a list")
    return value


def as_text(value: Any, where: str, field: str = "") -> str:
    """A string; null counts as empty. `where` and `field` are joined only to complain: this runs per message."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise bad(f"{where}{field} must be a string")


def as_count(value: Any, where: str) -> int | None:
    """A positive whole number, or None for null."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer() or value < 1:
        raise bad(f"{where} must be a positive whole number")
    return int(value)


def as_arguments(value: Any, where: str) -> str:
    """The arguments of a tool call as JSON text; some clients send the object itself."""
    if isinstance(value, str):
        return value
    return dumps(value or {}).decode()


def join_parts(content: Any, where: str, field: str, between: str = "\n") -> str:
    """The text of a string or of a list of text parts. A part that is no text is refused by name, never dropped."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    where += field
    texts = []
    for index, part in enumerate(as_list(content, where)):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = as_text(as_object(part, f"{where}[{index}]").get("type"), f"{where}[{index}].type")
        if kind not in ("", "text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"):
            raise bad(f"{where}[{index}] is {kind!r}: this model reads text only", code="unsupported_content")
        texts.append(as_text(part.get("refusal" if kind == "refusal" else "text"), f"{where}[{index}].text"))
    return between.join(texts)


def asked_sampling(body: dict[str, Any]) -> dict[str, Any]:
    return {key: body[key] for key in SAMPLING if body.get(key) is not None}


def custom_arguments(text: str) -> str:
    """A free-form tool call as the JSON that our models write: `{"input": "..."}`."""
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The inverse of `custom_arguments`; a model that wrote something else is shown as it wrote."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def whole(value: Any) -> int | None:
    """A token count out of a provider's usage, None when it is missing or odd."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_events(body: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, in order; comments and `[DONE]` are left out."""
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:"))
        if data and data.strip() != b"[DONE]":
            yield as_object(parse_json(data), "event")


def incomplete(what: str) -> WireError:
    """A provider's answer that stops before its end."""
    return WireError(502, "incomplete_answer", what)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def openai_error(error: WireError) -> bytes:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return orjson.dumps({"error": {"message": error.message, "type": kind, "param": None, "code": error.code}})
