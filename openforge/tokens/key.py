"""When two messages are the same message.

A harness sends the whole conversation back on every call, and many rewrite what the policy said on the way: argument
spacing and key order, `1.0` as `1`, call ids without `_`, padded text, no reasoning. None of that changes who spoke
next, so none of it is compared. What a user, a system prompt or a tool said is compared exactly.

This module does not know tokens: equal keys say "the same turn of the conversation", and the ids of that turn are the
recorded ones.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import orjson

from openforge.tokens.message import Message, Tool

KEY_BYTES = 16
_CACHED_ARGUMENTS = 4096  # characters; every call brings the arguments of the whole history back
_NOT_ALNUM = re.compile(r"[^0-9A-Za-z]")


def root_key(tools: Sequence[Tool]) -> bytes:
    """Where a conversation starts: other tools are another root, since tools are part of the rendered prompt."""
    schemas = [tool.schema() for tool in tools]
    try:
        text = orjson.dumps(schemas, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates, integers over 64 bits
        text = repr(schemas).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=KEY_BYTES).digest()


def message_key(message: Message, *, compare_ids: bool = True) -> bytes:
    """16 bytes that are equal for two messages that mean the same turn.

    `compare_ids=False` also forgives tool call ids that a harness made anew (call_1 became call_9).
    """
    if message.role == "assistant":
        parts = [message.role, message.text.strip()]
        for call in message.tool_calls:
            parts += [_plain_id(call.id) if compare_ids else "", call.name, canonical_arguments(call.arguments)]
        return _digest(parts)
    return _digest([message.role, _plain_id(message.tool_call_id) if compare_ids else "", message.text])


def exact_key(messages: Iterable[Message]) -> bytes:
    """16 bytes that are equal only for the very same messages: what renders to the same ids."""
    parts: list[str] = []
    for message in messages:
        parts += [message.role, message.text, message.reasoning, message.tool_call_id, str(len(message.tool_calls))]
        for call in message.tool_calls:
            parts += [call.id, call.name, call.arguments]
    return _digest(parts)


def system_key(messages: Iterable[Message]) -> bytes:
    """The key of the system messages that a conversation starts with; `b""` when there are none."""
    key = b""
    for message in takewhile(lambda message: message.role == "system", messages):
        key = extend(key, message_key(message))
    return key


def extend(prev: bytes, key: bytes) -> bytes:
    """The rolling chain: the key of a conversation `prev` with one more message `key`."""
    return blake2b(prev + key, digest_size=KEY_BYTES).digest()


def canonical_arguments(arguments: str) -> str:
    """JSON arguments as one canonical text; what cannot be parsed is only stripped."""
    return _cached(arguments) if len(arguments) <= _CACHED_ARGUMENTS else _canonical_text(arguments)


def _canonical_text(arguments: str) -> str:
    stripped = arguments.strip() or "{}"
    try:
        return orjson.dumps(_canonical(orjson.loads(stripped)), option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):  # not JSON, or nested deeper than orjson writes
        return stripped


_cached = lru_cache(maxsize=2048)(_canonical_text)


def _canonical(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return float(value) + 0.0  # JavaScript knows float64 only, and writes -0 as 0
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return value


def _digest(parts: Iterable[str]) -> bytes:
    """Of parts with their lengths, so that no text can be mistaken for two parts."""
    digest = blake2b(digest_size=KEY_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.digest()


def _plain_id(text: str) -> str:
    return text if text.isalnum() and text.isascii() else _NOT_ALNUM.sub("", text)
