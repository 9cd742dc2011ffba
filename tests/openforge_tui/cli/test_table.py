"""What a narrow terminal shows of a wide table."""

from hypothesis import given
from hypothesis import strategies as st

from openforge_tui.cli.table import GAP, Column, fit

NAME = Column("rollout_id", ("r0000000aaa.count-lines.codex.0",))
STATE = Column("state", ("a state that is rather long to tell",))
CALLS = Column("calls", ("123456789012",), fixed=True, right=True)
DETAIL = Column("detail", ("x" * 300,))


def widths(columns: list[Column], width: int) -> dict[str, int]:
    return {column.header: wide for column, wide in fit(columns, width).shown}


def test_the_last_text_column_gives_way_first() -> None:
    assert widths([NAME, STATE, CALLS, DETAIL], 120) == {"rollout_id": 31, "state": 35, "calls": 12, "detail": 36}


def test_then_the_one_before_it_and_never_a_number() -> None:
    assert widths([NAME, STATE, CALLS, DETAIL], 99) == {"rollout_id": 31, "state": 26, "calls": 12, "detail": 24}


def test_what_finds_no_room_is_named() -> None:
    layout = fit([NAME, STATE, CALLS, DETAIL], 80)
    assert [column.header for column, _ in layout.shown] == ["rollout_id", "state", "calls"]
    assert layout.left_out == ("detail",)


def test_an_empty_column_goes_before_one_is_cut() -> None:
    layout = fit([NAME, Column("a very wide header", ("",)), CALLS], 50)
    assert [column.header for column, _ in layout.shown] == ["rollout_id", "calls"]
    assert (layout.left_out, layout.cut) == ((), False)


@given(st.lists(st.tuples(st.text(max_size=30), st.booleans()), min_size=1, max_size=8), st.integers(20, 200))
def test_it_fits_or_is_the_first_column_alone(cells: list[tuple[str, bool]], width: int) -> None:
    layout = fit([Column("h", (text,), fixed=fixed) for text, fixed in cells], width)
    used = sum(wide for _, wide in layout.shown) + GAP * (len(layout.shown) - 1)
    assert used <= width or len(layout.shown) == 1
