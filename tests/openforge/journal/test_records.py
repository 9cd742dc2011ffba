"""A record fits its declaration, or nothing is written."""

import json
from array import array
from typing import Any

import pytest

from openforge.journal.records import HEADER, KINDS, Column, RecordError, Type, check

SAMPLE = {
    "sample_id": "s", "call_ids": ["c"], "token_ids": array("i", [1, 2]), "loss_mask": b"\0\1",
    "logprobs": [None, -0.5], "is_main": True, "weight": 1, "reason": "root",
}  # fmt: skip
CLOSE = {"call_id": "c", "dialect": "chat", "mode": "train", "stream": False, "status": 200}
MESSAGE = {"position": 0, "role": "assistant"}
TOOL_CALL = {"id": "", "name": "n", "arguments": "{"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("sample", SAMPLE),
        ("metric", {"step": 2**60, "name": "loss", "value": 3}),
        ("run.end", {"state": "done", "reason": None}),
        ("call.close", CLOSE | {"messages": [MESSAGE | {"text": "x"}], "logprobs": array("f", [1])}),
        ("call.close", CLOSE | {"messages": [MESSAGE | {"tool_calls": [TOOL_CALL]}]}),
        ("call.close", CLOSE | {"request": {"any": [1, None]}, "response": "text", "dropped_tools": []}),
    ],
)
def test_what_fits_is_taken(kind: str, fields: dict[str, Any]) -> None:
    check(kind, fields)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("nope", {}, "not declared"),
        ("run.end", {}, "needs 'state'"),
        ("run.end", {"state": None}, "needs 'state'"),
        ("run.end", {"state": "done", "why": "x"}, "no column 'why'"),
        ("metric", {"step": "twelve", "name": "loss", "value": 1.0}, "'step'"),
        ("metric", {"step": 2**63, "name": "loss", "value": 1.0}, "'step'"),
        ("metric", {"step": True, "name": "loss", "value": 1.0}, "'step'"),
        ("metric", {"step": 1.0, "name": "loss", "value": 1.0}, "'step'"),
        ("metric", {"step": 1, "name": "loss", "value": float("nan")}, "'value'"),
        ("metric", {"step": 1, "name": "loss", "value": "0.5"}, "'value'"),
        ("metric", {"step": 1, "name": b"loss", "value": 0.5}, "'name'"),
        ("sample", SAMPLE | {"token_ids": [1, "2"]}, "'token_ids'"),
        ("sample", SAMPLE | {"token_ids": array("f", [1])}, "'token_ids'"),
        ("sample", SAMPLE | {"logprobs": array("i", [1])}, "'logprobs'"),
        ("sample", SAMPLE | {"logprobs": ["-0.1"]}, "'logprobs'"),
        ("sample", SAMPLE | {"call_ids": "c1"}, "'call_ids'"),
        ("sample", SAMPLE | {"is_main": 1}, "'is_main'"),
        ("call.close", CLOSE | {"messages": {"position": 0, "role": "user"}}, "'messages'"),
        ("call.close", CLOSE | {"messages": [{"role": "user"}]}, "'messages'"),
        ("call.close", CLOSE | {"messages": [MESSAGE | {"content": "x"}]}, "'messages'"),
        ("call.close", CLOSE | {"messages": [MESSAGE | {"tool_calls": [{"id": "x"}]}]}, "'messages'"),
    ],
)
def test_q19_what_does_not_fit_is_refused_by_name(kind: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RecordError, match=says):
        check(kind, fields)


def test_a_kind_has_no_column_twice_and_none_of_the_header() -> None:
    header = {column.name for column in HEADER}
    for columns in KINDS.values():
        names = [column.name for column in columns]
        assert len(names) == len(set(names))
        assert not header & set(names)


def test_only_rows_have_fields_and_every_kind_is_plain_data() -> None:
    def walk(columns: tuple[Column, ...]) -> None:
        for column in columns:
            assert bool(column.fields) == (column.type is Type.ROWS)
            walk(column.fields)

    for kind, columns in KINDS.items():
        assert json.dumps(kind)
        walk(columns)
