from datetime import datetime

import pyarrow as pa
import pytest

from openforge.errors import UsageError
from openforge_tui.chart import MOST_BARS, Bars, Line, chart_of


def test_names_and_numbers_are_bars() -> None:
    chart = chart_of(pa.table({"harness": ["pi", None], "reward": [0.5, None]}))
    assert chart == Bars("reward by harness", ["pi", "NULL"], [0.5, None])


def test_two_numbers_are_a_line_without_the_points_that_have_no_x() -> None:
    chart = chart_of(pa.table({"step": [2, 1, None], "value": [4, 3, 9]}))
    assert chart == Line("value by step", "step", "value", [2.0, 1.0], [4.0, 3.0])


def test_a_time_counts_from_the_first() -> None:
    times = [datetime(2026, 1, 1, 12, minute) for minute in (0, 10, 20)]
    chart = chart_of(pa.table({"at": times, "n": [1, 2, 3]}))
    assert isinstance(chart, Line)
    assert (chart.x_title, chart.xs) == ("min since 2026-01-01 12:00:00", [0.0, 10.0, 20.0])


def test_what_is_left_out_is_said() -> None:
    chart = chart_of(pa.table({"name": [str(n) for n in range(MOST_BARS + 1)], "n": range(MOST_BARS + 1)}))
    assert isinstance(chart, Bars)
    assert len(chart.values) == MOST_BARS
    assert chart.title == "n by name: the first 1,000 of 1,001 rows"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"a": [1]}, "needs two columns, this has 1"),
        ({"a": [1], "b": ["x"]}, "b is string"),
        ({"a": [[1]], "b": [1]}, "a is list"),
        ({"a": ["x"][:0], "b": pa.array([], pa.int64())}, "no rows"),
        ({"a": pa.array([None], pa.int64()), "b": [1]}, "a is NULL in every row"),
    ],
)
def test_what_cannot_be_charted_says_why(table: dict[str, list[object]], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chart_of(pa.table(table))
