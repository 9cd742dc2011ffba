"""Lines or bars of the widget's own size, in the theme's colours; without colour each line still has its own mark.

Built off the event loop: plotext has one figure for the whole process, so that only one is built at a time. Does not
know what the numbers are.
"""

import asyncio
import math
import os
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from rich.style import Style
from rich.text import Text
from textual.color import Color
from textual.widgets import Static

from openforge_tui.transcript import visible

MARKS = ("braille", "+", "x", "o", "*", "#", "%", "@")
_DOTS = "⢕"  # how the first mark looks in a legend
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLORS = ("primary", "secondary", "success", "error", "accent", "foreground")  # of the theme
_GREY = (128, 128, 128)
_BUILDING = threading.Lock()
_EMPTY = "no points yet"


class Series(NamedTuple):
    """One line; a y that is None or NaN is a gap in it."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]


class Look(NamedTuple):
    """The room there is, and the colours as RGB: of the lines, and of what is less important."""

    width: int
    height: int
    colors: Sequence[tuple[int, int, int]]
    dim: tuple[int, int, int]


class Plot(Static):
    """`show_lines` or `show_bars`, as often as there is something new; drawn again when the size or theme changes."""

    DEFAULT_CSS = "Plot { width: 1fr; height: 1fr; padding: 0 1; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", id=id, classes=classes, markup=False)
        self._build: partial[Text] | None = None
        self._asked = self._drawn = 0

    @property
    def drawing(self) -> bool:
        """Whether what was asked for last is not on the screen yet."""
        return self._asked != self._drawn

    def show_lines(
        self, series: Sequence[Series], *, title: str = "", x_title: str = "x", cursor: float | None = None
    ) -> None:
        """Lines over x; `cursor` is a mark at an x, whose values are told below instead of the last ones."""
        self._show(partial(lines, series, title=title, x_title=x_title, cursor=cursor))

    def show_bars(self, labels: Sequence[str], values: Sequence[float | None], *, title: str = "") -> None:
        """One bar a label, from zero."""
        self._show(partial(bars, labels, values, title=title))

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self._draw())

    def on_resize(self) -> None:
        self._draw()

    def _show(self, build: partial[Text]) -> None:
        same = self._build is not None and (build.func, build.args, build.keywords) == (
            self._build.func,
            self._build.args,
            self._build.keywords,
        )
        if not same:
            self._build = build
            self._draw()

    def _draw(self) -> None:
        width, height = self.content_size
        if self._build is not None and width > 0 and height > 0:
            self._asked += 1
            self.run_worker(self._drawing(self._build, self._look(width, height), self._asked), exclusive=True)

    async def _drawing(self, build: partial[Text], look: Look, number: int) -> None:
        self.update(await asyncio.to_thread(build, look))
        self._drawn = number

    def _look(self, width: int, height: int) -> Look:
        named = self.app.theme_variables
        colors = [Color.parse(named[name]).rgb for name in _COLORS]
        return Look(width, height, [*colors, *[_GREY] * (len(MARKS) - len(colors))], _GREY)


def lines(series: Sequence[Series], look: Look, *, title: str, x_title: str, cursor: float | None) -> Text:
    """The curves as text, for any thread."""
    shown = series[: len(MARKS)]
    parts = [list(_parts(one)) for one in shown]
    points = [point for some in parts for part in some for point in part]
    head = Text(visible(title), "bold", no_wrap=True, overflow="ellipsis")
    if not points:
        return Text("\n").join([head, Text(_EMPTY, "dim")]) if title else Text(_EMPTY, "dim")
    legend = _legend(series, look, x_title, cursor)
    height = look.height - len(legend) - bool(title)
    rows = [head] if title else []
    if height >= 4 and look.width >= 16:
        thin = [[downsample(part, 2 * look.width) for part in some] for some in parts]
        rows.append(_foreground(Text.from_ansi(_figure(thin, points, look, height, cursor), no_wrap=True)))
    return Text("\n").join([*rows, *legend])


def _parts(series: Series) -> Iterator[list[tuple[float, float]]]:
    """The stretches without a gap, each in the order of x."""
    part: list[tuple[float, float]] = []
    for x, y in sorted(zip(series.xs, series.ys, strict=True), key=lambda point: point[0]):
        if y is not None and math.isfinite(y):
            part.append((x, float(y)))
        elif part:
            yield part
            part = []
    if part:
        yield part


def downsample(points: Sequence[tuple[float, float]], count: int) -> Sequence[tuple[float, float]]:
    """At most `count` of them: of each stretch of x the lowest and the highest, so that no spike is lost."""
    if len(points) <= count:
        return points
    size = math.ceil(2 * len(points) / count)
    kept = []
    for at in range(0, len(points), size):
        some = points[at : at + size]
        ends = {min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _figure(
    parts: Sequence[Sequence[Sequence[tuple[float, float]]]],
    points: Sequence[tuple[float, float]],
    look: Look,
    height: int,
    cursor: float | None,
) -> str:
    import plotext

    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right = _spread(min(xs), max(xs))
    low, high = _spread(min(ys), max(ys))
    with _BUILDING:
        figure = plotext.figure
        plotext.terminal.limit(False, False)  # else no wider than the terminal that plotext believes to be in
        figure.clear()
        figure.theme("colorless")
        figure.plot_size(look.width, height)
        figure.axes(False, side=1)
        for number, some in enumerate(parts):
            mark = plotext.marker(_mark(number), pixel=plotext.pixel(look.colors[number]))
            for part in some:
                line = figure.signal([x for x, _ in part], [y for _, y in part], marker=mark)
                figure.draw(line.lines())
        if cursor is not None and left <= cursor <= right:
            figure.line(cursor, "v", pixel=plotext.pixel(look.dim, "default"), style="dotted")
        figure.ruler("x").lim(left, right)
        figure.ruler("y").lim(low, high)
        whole = all(float(x).is_integer() for x in xs)
        for axis, ticks in (
            ("x", nice_ticks(left, right, max(2, look.width // 10), whole=whole)),
            ("y", nice_ticks(low, high, max(2, height // 3))),
        ):
            figure.ruler(axis).ticks(ticks, [short(tick) for tick in ticks])
        return str(figure.build()).rstrip("\n")


def _spread(low: float, high: float) -> tuple[float, float]:
    """Ends that are apart, also for one point."""
    if high > low:
        return low, high
    pad = abs(low) / 2 or 1.0
    return low - pad, high + pad


def nice_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """At most `most` + 1 round numbers between `low` and `high`."""
    raw = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times >= raw * 0.999)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number in few letters: 0.25, 1200, 3.4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _foreground(text: Text) -> Text:
    """Without backgrounds: plotext's "default" one is not the widget's."""
    text.spans = [
        span._replace(style=Style(color=span.style.color)) if isinstance(span.style, Style) else span
        for span in text.spans
    ]
    return text


def _legend(series: Sequence[Series], look: Look, x_title: str, cursor: float | None) -> list[Text]:
    """Each line's mark, name and value at the cursor, else its last one; as many rows as it takes, two at most."""
    entries: list[Text] = []
    at = cursor if cursor is not None else max(x for one in series for x in one.xs)
    entries.append(Text(f"{visible(x_title)} {short(at)}", "dim"))
    for number, one in enumerate(series[: len(MARKS)]):
        known = [
            (x, y)
            for x, y in zip(one.xs, one.ys, strict=True)
            if y is not None and math.isfinite(y) and (cursor is None or x == cursor)
        ]
        value = short(max(known)[1]) if known else "–"
        color = "#{:02x}{:02x}{:02x}".format(*look.colors[number])
        mark = _DOTS if _mark(number) == "braille" else _mark(number)
        entries.append(Text(mark, color).append(f" {visible(one.name)} ", "not bold").append(value, "bold"))
    rows, left = [Text()], len(entries)
    for entry in entries:
        if rows[-1].plain and rows[-1].cell_len + 3 + entry.cell_len > look.width - 10:
            if len(rows) == 2:
                break
            rows.append(Text())
        rows[-1].append("   " if rows[-1].plain else "").append_text(entry)
        left -= 1
    if hidden := left + max(0, len(series) - len(MARKS)):
        rows[-1].append(f"   +{hidden} more", "dim")
    for row in rows:
        row.no_wrap, row.overflow = True, "ellipsis"
    return rows


def bars(labels: Sequence[str], values: Sequence[float | None], look: Look, *, title: str) -> Text:
    """A row a bar, as many as there is room for."""
    rows = [Text(visible(title), "bold", no_wrap=True, overflow="ellipsis")] if title else []
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return Text("\n").join([*rows, Text(_EMPTY, "dim")])
    names = [visible(label).replace("\n", " ") for label in labels]
    wide = min(max(map(len, names)), max(8, look.width // 3))
    told = [short(value) if value is not None and math.isfinite(value) else "–" for value in values]
    room = max(1, look.width - wide - max(map(len, told)) - 3)
    low, high = min(0.0, *known), max(0.0, *known)
    scale = room / ((high - low) or 1.0)
    space = look.height - len(rows)
    fit = len(names) if len(names) <= space else max(0, space - 1)
    for name, value, text in list(zip(names, values, told, strict=True))[:fit]:
        label = name if len(name) <= wide else name[: wide - 1] + "…"
        row = Text(f"{label:>{wide}} ", no_wrap=True, overflow="crop")
        if value is not None and math.isfinite(value):
            start = round((min(value, 0.0) - low) * scale)
            row.append(" " * start).append(_bar(abs(value) * scale), "#{:02x}{:02x}{:02x}".format(*look.colors[0]))
        rows.append(row.append(f" {text}", "bold"))
    if fit < len(names):
        rows.append(Text(f"{len(names) - fit} more bars: a higher window shows them", "dim"))
    return Text("\n").join(rows)


def _bar(length: float) -> str:
    full, rest = divmod(round(length * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")) or "▏"


def _mark(number: int) -> str:
    """Of a series. The font of Linux's own console has no braille."""
    return "." if MARKS[number] == "braille" and os.environ.get("TERM") == "linux" else MARKS[number]
