"""Records to lines and back.

orjson writes the line; what it refuses (arrays, bytes as lists of numbers, lone surrogates, integers over 64 bits, deep
nesting) is written in a form that any JSON reader takes, so that no record is lost for what a model or a harness said.
"""

import json
from array import array
from typing import Any

import orjson

_DEPTH = 200  # orjson writes 254 levels

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


def encode(record: dict[str, Any]) -> bytes:
    """One line, with its newline. Floats that are not finite become null. Raises TypeError for what is not data."""
    try:
        return orjson.dumps(record, default=_plain, option=_OPTIONS)
    except orjson.JSONEncodeError:
        return orjson.dumps(_plain_tree(record), option=_OPTIONS)


def decode(line: bytes) -> dict[str, Any] | None:
    """The record of a line (with or without its newline); None when it is damaged."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and "seq" in record and "kind" in record else None


def _plain(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be journalled")


def _plain_tree(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):  # a lone surrogate is no Unicode text: shown as \\udxxx
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict | list | tuple) and depth >= _DEPTH:
        return json.dumps(value, default=_plain)
    if isinstance(value, dict):
        return {_plain_tree(str(name)): _plain_tree(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_tree(item, depth + 1) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value if value is None or isinstance(value, int | float) else _plain(value)
