import math

import pytest
from textual.app import App, ComposeResult

from openforge_tui.widgets.plot import Look, Plot, Series, bars, downsample, lines, nice_ticks, short

LOOK = Look(60, 12, [(200, 100, 0)] * 8, (128, 128, 128))


def drawn(*series: Series, look: Look = LOOK, cursor: float | None = None) -> str:
    return lines(series, look, title="reward", x_title="step", cursor=cursor).plain


def test_each_line_has_its_own_mark_and_its_last_value() -> None:
    text = drawn(Series("react", [1, 2, 3], [0.1, 0.4, 0.9]), Series("pi", [1, 2, 3], [0.9, 0.5, 0.25]))
    assert text.splitlines()[0] == "reward"
    assert text.splitlines()[-1] == "step 3   ⢕ react 0.9   + pi 0.25"
    assert "+" in "".join(text.splitlines()[1:-2])
    assert any("\u2800" < letter <= "\u28ff" for letter in "".join(text.splitlines()[1:-2]))


def test_no_braille_where_the_font_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "linux")
    text = drawn(Series("react", [1, 2, 3], [0.1, 0.4, 0.9]), Series("pi", [1, 2, 3], [0.9, 0.5, 0.25]))
    assert text.splitlines()[-1] == "step 3   . react 0.9   + pi 0.25"
    assert text.count(".") > 20
    assert not any("\u2800" < letter <= "\u28ff" for letter in text)


def test_it_fills_the_room_and_no_more() -> None:
    text = drawn(Series("react", range(500), [math.sin(x / 30) for x in range(500)]))
    assert len(text.splitlines()) == 12
    assert max(map(len, text.splitlines())) <= 60


def test_the_cursor_is_drawn_and_its_values_told() -> None:
    text = drawn(Series("react", [1, 2, 3], [0.1, 0.4, 0.9]), cursor=2)
    assert "┊" in text
    assert "step 2   ⢕ react 0.4" in text


def test_a_gap_is_not_drawn_through() -> None:
    gap = drawn(Series("a", range(9), [0, 0, 0, None, math.nan, math.nan, 0, 0, 0]))
    whole = drawn(Series("a", range(9), [0] * 9))
    count = lambda text: sum("\u2800" < letter <= "\u28ff" for letter in text)  # noqa: E731
    assert 0 < count(gap) < count(whole) * 0.8


@pytest.mark.parametrize("series", [[], [Series("a", [], [])], [Series("a", [1, 2], [None, math.inf])]])
def test_nothing_to_draw_is_said(series: list[Series]) -> None:
    assert lines(series, LOOK, title="", x_title="step", cursor=None).plain == "no points yet"
    assert bars([], [], LOOK, title="").plain == "no points yet"


def test_one_point_is_drawn() -> None:
    assert "⢕ a 0.5" in drawn(Series("a", [3], [0.5]))


def test_too_little_room_leaves_the_numbers() -> None:
    assert "a 0.5" in drawn(Series("a", [3, 4], [0.1, 0.5]), look=LOOK._replace(height=3))


def test_what_is_not_drawn_is_counted() -> None:
    many = [Series(f"harness-number-{number}", [1, 2], [0, number]) for number in range(12)]
    text = drawn(*many)
    shown = sum(f"harness-number-{number} " in text for number in range(12))
    assert f"+{12 - shown} more" in text


def test_names_from_a_file_are_plain_text() -> None:
    assert "\x1b]" not in drawn(Series("[red]a\x1b]0;x\x07", [1], [1]))
    assert "[red]a" in drawn(Series("[red]a\x1b]0;x\x07", [1], [1]))


def test_a_spike_survives_downsampling() -> None:
    points = [(float(x), 9.0 if x == 70_001 else 0.0) for x in range(100_000)]
    kept = downsample(points, 120)
    assert len(kept) <= 120
    assert (70_001.0, 9.0) in kept


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.31, 0.33), (1, 2000), (-5, 5e7)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 5)
    assert 2 <= len(ticks) <= 6
    assert all(low - 1e-6 <= tick <= high * (1 + 1e-9) for tick in ticks)


def test_numbers_are_short() -> None:
    told = [short(value) for value in (0, 20, 0.25, 1 / 3, 1234, 15_300, 2_500_000, -0.5)]
    assert told == ["0", "20", "0.25", "0.333", "1234", "15.3k", "2.5M", "-0.5"]


def test_bars_begin_at_zero_and_say_what_does_not_fit() -> None:
    text = bars(["good", "bad", "unknown"], [2.0, -1.0, None], LOOK, title="reward").plain.splitlines()
    assert text[0] == "reward"
    assert text[1].index("█") > text[2].index("█")
    assert text[3].split() == ["unknown", "–"]
    cut = bars([f"t{number}" for number in range(40)], [1.0] * 40, LOOK, title="").plain.splitlines()
    assert len(cut) == 12
    assert cut[-1].startswith("29 more bars")


class _App(App[None]):
    def compose(self) -> ComposeResult:
        yield Plot()


async def test_it_is_drawn_again_when_the_size_changes() -> None:
    app = _App()
    async with app.run_test(size=(80, 20)) as pilot:
        plot = app.query_one(Plot)
        plot.show_lines([Series("react", list(range(50)), list(range(50)))], title="reward", x_title="step")
        for width in (80, 120):
            await pilot.resize_terminal(width, 20)
            for _ in range(200):
                drawn_wide = max(map(len, str(plot.content).splitlines()), default=0)
                if drawn_wide == width - 2:
                    break
                await pilot.pause(0.02)
            assert drawn_wide == width - 2
            assert not plot.drawing
