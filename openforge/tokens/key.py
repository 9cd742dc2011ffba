"""When two messages are the same message.

A harness sends the whole conversation back on every call, and many rewrite what the policy said on the way: argument
spacing and key order, `1.0` as `1`, call ids without `_`, padded text, no reasoning. None of that changes who spoke
next, so none of it is compared. What a user, a system prompt or a tool said is compared exactly.

This module does not know tokens: equal keys say "the same turn of the conversation", and the ids of that turn are the
recorded ones.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import orjson

from openforge.tokens.message import Message, Tool

KEY_BYTES = 16
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
    else:
        parts = [message.role, _plain_id(message.tool_call_id) if compare_ids else "", message.text]
    digest = blake2b(digest_size=KEY_BYTES)
    for part in parts:  # each part with its length, so that no text can be mistaken for two parts
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.digest()


def extend(prev: bytes, key: bytes) -> bytes:
    """The rolling chain: the key of a conversation `prev` with one more message `key`."""
    return blake2b(prev + key, digest_size=KEY_BYTES).digest()


def canonical_arguments(arguments: str) -> str:
    """JSON arguments as one canonical text; what cannot be parsed is only stripped."""
    stripped = arguments.strip() or "{}"
    try:
        return orjson.dumps(_canonical(orjson.loads(stripped)), option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, TypeError, OverflowError, RecursionError):  # not JSON, or nested deeper than orjson writes
        return stripped


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


def _plain_id(text: str) -> str:
    return text if text.isalnum() and text.isascii() else _NOT_ALNUM.sub("", text)
