from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from openforge_tui.widgets.results import CUT, WHOLE_CUT, cell_text, lay_out, whole_value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        ("", ""),
        ("a\nb\tc", "a⏎b c"),
        ("\x1b[31m[bold]x[/] \u202e", "␛[31m[bold]x[/] \\u202e"),
        (1234567, "1234567"),
        (0.1234567, "0.123457"),
        (Decimal(12), "12"),
        (True, "true"),
        (b"\x00\xff", "00ff"),
        (datetime(2026, 1, 2, 3, 4, 5, 678901), "2026-01-02 03:04:05.678"),
        ([1, None, 3], "[1, NULL, 3]"),
        ([{"name": "ls", "n": [1]}], "[{name: ls, n: [1]}]"),
        (["\x1b"], "[␛]"),
    ],
)
def test_a_cell_is_plain_text_on_one_line(value: object, text: str) -> None:
    assert cell_text(pa.array([value])[0]) == text


def test_large_values_are_shortened_and_say_so() -> None:
    assert cell_text(pa.scalar("é" * 10_000_000)) == "é" * CUT + "…"
    assert cell_text(pa.scalar(list(range(1_000_000)))).endswith("23, … 1000000 in all]")
    assert len(cell_text(pa.scalar([["x" * 300] * 300] * 300))) < 400


def test_a_time_that_python_has_no_value_for_is_still_shown() -> None:
    assert cell_text(pa.scalar(2**62, pa.timestamp("us")))
    assert whole_value(pa.scalar(2**62, pa.timestamp("us")))


def test_a_whole_value_is_laid_out_and_only_what_is_far_too_long_is_cut() -> None:
    assert whole_value(pa.scalar('{"a": [1]}')) == '{\n  "a": [\n    1\n  ]\n}'
    assert whole_value(pa.scalar("{not json")) == "{not json"
    assert whole_value(pa.scalar([{"a": 1.5}])) == '[\n  {\n    "a": 1.5\n  }\n]'
    assert whole_value(pa.scalar("x" * (WHOLE_CUT + 5))).endswith("\n… 5 more characters; f7 writes them all")


def test_columns_are_as_wide_as_there_is_room_for() -> None:
    table = pa.table({"n": [1, 200], "text": ["x" * 60, "y"], "long": ["z" * 500, "z"]})
    assert lay_out(table, 80).widths == [3, 40, 40]
    assert lay_out(table, 130).widths == [3, 60, 61]
    assert lay_out(pa.table({"a long name": pa.array([], pa.int64())}), 80).widths == [11]
