"""Whatever a model or a harness said becomes one line, and comes back."""

import json
import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.journal.encode import decode, encode

HEAD: dict[str, Any] = {"seq": 0, "kind": "metric"}
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_any_json_value_is_one_line_and_comes_back(value: Any) -> None:
    line = encode(HEAD | {"x": value})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == HEAD | {"x": value}


@given(st.text(st.characters(), max_size=40))
def test_any_text_is_one_line_also_with_lone_surrogates(text: str) -> None:
    line = encode(HEAD | {"x": text, text: 1})
    record = decode(line)
    assert line.count(b"\n") == 1
    assert record is not None
    assert record["x"] == text.encode("utf-8", "backslashreplace").decode()
    assert json.loads(line) == record  # what orjson writes, others read


@pytest.mark.parametrize("number", [2**53 + 1, 2**60 + 1, 2**63 - 1, -(2**63)])
def test_q22_integers_over_2_to_the_53_are_exact(number: int) -> None:
    assert (decode(encode(HEAD | {"x": number})) or {})["x"] == number
    assert str(number).encode() in encode(HEAD | {"x": number})


def test_integers_over_64_bits_become_text_rather_than_floats() -> None:
    assert (decode(encode(HEAD | {"x": [2**70, -(2**70), 2**63]})) or {})["x"] == [
        str(2**70),
        str(-(2**70)),
        str(2**63),
    ]


def test_arrays_and_masks_are_lists_of_numbers_and_what_is_not_finite_is_null() -> None:
    fields = {"ids": array("i", [1, -1]), "mask": b"\0\1", "logprobs": array("f", [-0.5, math.nan, -math.inf])}
    assert decode(encode(HEAD | fields)) == HEAD | {"ids": [1, -1], "mask": [0, 1], "logprobs": [-0.5, None, None]}
    assert decode(encode(HEAD | fields | {"x": "\ud800"})) is not None  # the same on the slow path


def test_deep_nesting_is_kept_as_json_text_from_some_depth_on() -> None:
    deep: Any = "bottom"
    for _ in range(900):
        deep = [deep]
    value = (decode(encode(HEAD | {"x": deep})) or {})["x"]
    while isinstance(value, list):
        value = value[0]
    assert "bottom" in json.loads(value.strip("[]"))


def test_what_is_not_data_is_refused() -> None:
    with pytest.raises(TypeError):
        encode(HEAD | {"x": object()})


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"[1]", b'"seq kind"', b'{"seq":1}', b"\0\0\0\0\n", b'{"seq":0,"kind":"\xff"}\n']
)
def test_what_is_no_record_is_none(line: bytes) -> None:
    assert decode(line) is None
