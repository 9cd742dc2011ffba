"""What a journal record may hold: every kind and its columns, declared once.

A record is one JSON object on one line: the header, then the flat columns of its kind. The store renders these
declarations to SQL; the writer checks each record against them, so that a record that cannot be read back as declared
is refused before it is written. This module does not know files or SQL.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from openforge.errors import InfraError, UsageError

VERSION = 1


class JournalError(InfraError):
    """The journal could not be written (or read): nothing that follows would be recorded."""


class RecordError(UsageError):
    """A record does not fit its declaration; nothing was written."""


class Type(StrEnum):
    """What a column holds. Integers are 64-bit, in JSON too: readers must not pass them through float64."""

    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    INTS = "ints"
    FLOATS = "floats"  # null for a value that is not finite
    TEXTS = "texts"
    JSON = "json"  # any JSON value
    ROWS = "rows"  # a list of objects with `fields`


@dataclass(frozen=True, slots=True)
class Column:
    """A named value; `optional` columns may be null or left out."""

    name: str
    type: Type
    doc: str = ""
    optional: bool = False
    fields: tuple["Column", ...] = ()


def _col(name: str, type_: Type, doc: str = "", *fields: Column) -> Column:
    return Column(name.rstrip("?"), type_, doc, optional=name.endswith("?"), fields=fields)


_T, _I, _F, _B = Type.TEXT, Type.INT, Type.FLOAT, Type.BOOL

HEADER: tuple[Column, ...] = (
    _col("v", _I, "version of the record format"),
    _col("recorder_id", _T, "the process that wrote it"),
    _col("seq", _I, "order among the records of one recorder_id, from 0 without gaps"),
    _col("ts", _F, "Unix time in seconds; never an order"),
    _col("kind", _T),
    _col("run_id", _T),
    _col("rollout_id?", _T),
    _col("attempt?", _I),
)

_TOOL_CALL = (_col("id", _T), _col("name", _T), _col("arguments", _T, "JSON text as it was written"))
_MESSAGE = (
    _col("position", _I, "index in the conversation, from 0"),
    _col("role", _T),
    _col("text?", _T, "null when it is kept as a blob"),
    _col("text_blob?", _T, "hash of the blob with the text"),
    _col("reasoning?", _T),
    _col("tool_calls?", Type.ROWS, "", *_TOOL_CALL),
    _col("tool_call_id?", _T),
)

KINDS: dict[str, tuple[Column, ...]] = {
    "run.start": (
        _col("config", Type.JSON, "redacted"),
        _col("tasks", Type.JSON),
        _col("harnesses", Type.JSON),
        _col("samples", _I),
        _col("policy", Type.JSON),
        _col("version", _T, "of OpenForge"),
        _col("incarnation?", _I, "0 at first, 1 more each time that an orchestrator takes the run up again"),
    ),
    "run.pause": (_col("paused", _B, "no rollout begins from here on, or they do again"),),
    "run.end": (_col("state", _T, "done, failed, error or cancelled"), _col("reason?", _T)),
    "blob": (
        _col("hash", _T, "blake2b-128 of the bytes, hex"),
        _col("data", _T),
        _col("encoding?", _T, "base64 when the bytes are not UTF-8"),
    ),
    "rollout.state": (
        _col("state", _T, "queued, starting, running, grading, done, failed, error or cancelled"),
        _col("task?", _T),
        _col("harness?", _T),
        _col("harness_version?", _T),
        _col("harness_hash?", _T),
        _col("sample?", _I),
        _col("seed?", _I),
        _col("error_class?", _T),
        _col("detail?", _T),
        _col("exit_code?", _I),
        _col("runtime?", _T),
        _col("duration_s?", _F),
        _col("purpose?", _T, "train or eval; this and the next three when it was asked for (queued)"),
        _col("step?", _I, "of the training that asked for it"),
        _col("group_id?", _T),
        _col("key?", _T, "the asker's own name for it: asked again, it is the same rollout"),
        _col("invalid_calls?", _I, "tool calls that no harness could have run (at the end)"),
    ),
    "call.open": (
        _col("call_id", _T),
        _col("dialect", _T),
        _col("mode", _T, "train or record"),
        _col("stream", _B),
        _col("model?", _T, "as the harness named it"),
        _col("host?", _T),
    ),
    "call.close": (
        _col("call_id", _T),
        _col("dialect", _T),
        _col("mode", _T),
        _col("stream", _B),
        _col("status", _I, "HTTP status"),
        _col("finish_reason?", _T),
        _col("parent_call_id?", _T, "the call whose prompt and answer this one continues"),
        _col("break_reason?", _T),
        _col("auxiliary?", _B, "a side call (title, quota), not trained"),
        _col("input_ids?", Type.INTS, "ids added to the parent's path before the answer"),
        _col("prompt_len?", _I, "ids of the whole prompt"),
        _col("completion_ids?", Type.INTS),
        _col("logprobs?", Type.FLOATS),
        _col("weight_version_min?", _T),
        _col("weight_version_max?", _T),
        _col("versions?", Type.JSON, "[[offset in the answer, weight version] …]"),
        _col("ttft_s?", _F),
        _col("duration_s?", _F),
        _col("max_tokens?", _I),
        _col("sampling?", Type.JSON),
        _col("overridden?", Type.JSON, "what the harness asked for and was not given"),
        _col("prompt_tokens?", _I, "usage as it was told to the harness"),
        _col("completion_tokens?", _I),
        _col("messages?", Type.ROWS, "what this call added to its parent's conversation, with the answer", *_MESSAGE),
        _col("request?", Type.JSON, 'the wire body; {"$history"} and {"$blob"} stand for what is stored already'),
        _col("request_bytes?", _I),
        _col("response?", Type.JSON),
        _col("dropped_tools?", Type.TEXTS, "hosted tools that were left out"),
    ),
    "call.abort": (
        _col("call_id", _T),
        _col("error_class", _T),
        _col("detail?", _T),
        _col("duration_s?", _F),
        _col("status?", _I),
    ),
    "call.refused": (_col("error_class", _T), _col("detail?", _T)),
    "egress": (
        _col("host", _T),
        _col("port?", _I),
        _col("decision", _T, "allow or refuse"),
        _col("rule?", _T),
        _col("method?", _T),
    ),
    "grade": (_col("reward", _F), _col("details?", Type.JSON), _col("duration_s?", _F)),
    "sample": (
        _col("sample_id", _T),
        _col("call_ids", Type.TEXTS),
        _col("token_ids", Type.INTS),
        _col("loss_mask", Type.INTS, "1 on the sampled ids that this row trains"),
        _col("logprobs?", Type.FLOATS, "null where not sampled"),
        _col("versions?", Type.JSON, "[[position in the row, weight version] …]"),
        _col("is_main", _B),
        _col("weight", _F, "sums to 1 over a rollout"),
        _col("reason", _T),
    ),
    "sample.refused": (_col("call_ids", Type.TEXTS), _col("reason", _T)),
    "metric": (
        _col("step", _I),
        _col("name", _T),
        _col("value", _F),
        _col("incarnation?", _I, "of the trainer, when one was at work"),
    ),
    "train.start": (
        _col("from_step", _I, "the checkpoint it begins with; what an earlier incarnation did after it is void"),
        _col("incarnation", _I, "0 for a run's first trainer"),
        _col("pid?", _I),
    ),
    "train.step": (
        _col("step", _I),
        _col("incarnation", _I),
        _col("weight_version", _T, "of the weights that this update made"),
        _col("rollouts", Type.TEXTS, "the rollouts that it learned from"),
        _col("samples", _I),
        _col("staleness_max?", _I, "weight versions between a sample's oldest token and the update"),
    ),
    "harness.fingerprint": (_col("harness", _T), _col("version?", _T), _col("fingerprint", Type.JSON)),
    "vocab": (_col("hash", _T, "names <store>/vocab/<hash>.jsonl"),),
}

_COLUMNS = {kind: {column.name: column for column in columns} for kind, columns in KINDS.items()}
_REQUIRED = {kind: [column.name for column in columns if not column.optional] for kind, columns in KINDS.items()}


def check(kind: str, fields: Mapping[str, Any]) -> None:
    """Raise RecordError when `fields` are not what `kind` declares: unknown, missing or of another type."""
    columns = _COLUMNS.get(kind)
    if columns is None:
        raise RecordError(f"journal records of kind {kind!r} are not declared", hint="see openforge/journal/records.py")
    for name in _REQUIRED[kind]:
        if fields.get(name) is None:
            raise RecordError(f"a {kind} record needs {name!r}")
    for name, value in fields.items():
        column = columns.get(name)
        if column is None:
            raise RecordError(f"a {kind} record has no column {name!r}", hint="see openforge/journal/records.py")
        if value is not None and not _fits(column, value):
            raise RecordError(f"{name!r} of a {kind} record must be {column.type}, not {value!r:.80}")


def _fits(column: Column, value: Any) -> bool:
    match column.type:
        case Type.TEXT:
            return isinstance(value, str)
        case Type.INT:
            return _is_int(value)
        case Type.FLOAT:
            return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
        case Type.BOOL:
            return isinstance(value, bool)
        case Type.INTS:
            if isinstance(value, array):
                return value.typecode not in "fdu"
            return isinstance(value, bytes) or (isinstance(value, list | tuple) and all(map(_is_int, value)))
        case Type.FLOATS:
            if isinstance(value, array):
                return value.typecode in "fd"
            return isinstance(value, list | tuple) and all(x is None or type(x) in (float, int) for x in value)
        case Type.TEXTS:
            return isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)
        case Type.JSON:
            return True
        case Type.ROWS:
            return isinstance(value, list | tuple) and all(_fits_row(column, row) for row in value)


def _fits_row(column: Column, row: Any) -> bool:
    if not isinstance(row, Mapping) or row.keys() - {field.name for field in column.fields}:
        return False
    for field in column.fields:
        value = row.get(field.name)
        if (value is None and not field.optional) or (value is not None and not _fits(field, value)):
            return False
    return True


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63
