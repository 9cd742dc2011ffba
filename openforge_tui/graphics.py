"""How this terminal shows an image: kitty's graphics, sixels, or coloured half cells, which any terminal can.

Told by the environment or by `[app] images`; the terminal is never asked, since its answer would come among the keys,
late or not at all. Does not know screens. Pillow is loaded with the first image: call `fit` and `widget_class` in a
thread.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from openforge.images import open_picture

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from textual.widget import Widget

type Way = Literal["kitty", "sixel", "cells"]

NAMES: dict[Way, str] = {"kitty": "kitty graphics", "sixel": "sixels", "cells": "half cells"}
_CELL = (10, 20)  # pixels, where the terminal does not say
_MOST_CELLS = 250  # kitty numbers columns with 297 signs
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_SIXEL_PROGRAMS = ("WezTerm", "iTerm.app", "mintty", "contour")
_SIXEL_TERMS = ("foot", "foot-extra", "contour", "mlterm")


def way_of(wanted: Literal["auto"] | Way, environ: Mapping[str, str], *, truecolor: bool) -> Way:
    """The best that this terminal is known to do. Within tmux or screen that is half cells, whatever is around them;
    kitty's pictures are addressed by a colour, so they need all of them."""
    if wanted != "auto":
        return wanted
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    if "TMUX" in environ or "STY" in environ or term.startswith(("tmux", "screen")):
        return "cells"
    if truecolor and (term in _KITTY_TERMS or "KITTY_WINDOW_ID" in environ or program == "ghostty"):
        return "kitty"
    if program in _SIXEL_PROGRAMS or term in _SIXEL_TERMS or "KONSOLE_VERSION" in environ:
        return "sixel"
    return "cells"


def cell_size() -> tuple[int, int]:
    """Width and height of a cell in pixels, as the kernel has it of the terminal."""
    import fcntl
    import struct
    import termios

    try:
        assert sys.__stdout__ is not None
        told = fcntl.ioctl(sys.__stdout__.fileno(), termios.TIOCGWINSZ, bytes(8))
    except (AssertionError, OSError, ValueError):
        return _CELL
    rows, columns, width, height = struct.unpack("HHHH", told)
    return (width // columns, height // rows) if width and height and rows and columns else _CELL


def widget_class(way: Way, cell: tuple[int, int]) -> "Callable[[Picture], Widget]":
    """What makes the widget that draws a picture this way."""
    from textual_image import _terminal

    # It asks the terminal on being imported and waits 2 s for an answer that Textual has taken; what it believes it
    # was told already, it does not ask.
    told = _terminal.TerminalCapabilities(_terminal.CellSize(*cell), sixel=way == "sixel", tgp=way == "kitty")
    _terminal.probe_terminal._result = told  # type: ignore[attr-defined]
    from textual_image import widget

    if way == "sixel":
        return widget.SixelImage
    return widget.TGPImage if way == "kitty" else widget.HalfcellImage


class Fitted(NamedTuple):
    """A picture with exactly the pixels that `columns` x `rows` cells take. `animated`: its first frame."""

    picture: "Picture"
    columns: int
    rows: int
    animated: bool


def fit(data: bytes, way: Way, box: tuple[int, int], cell: tuple[int, int]) -> Fitted:
    """As large as `box` (columns, rows) lets it, undistorted. Raises ValueError when it is damaged."""
    picture = open_picture(data)
    animated = bool(getattr(picture, "is_animated", False))
    width, height = picture.size
    scale = min(min(box[0], _MOST_CELLS) * cell[0] / width, min(box[1], _MOST_CELLS) * cell[1] / height)
    columns, rows = (max(1, int(size * scale / unit)) for size, unit in zip((width, height), cell, strict=True))
    pixels = (columns, rows * 2) if way == "cells" else (columns * cell[0], rows * cell[1])
    try:
        picture.draft("RGB", pixels)
        whole = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise ValueError(f"damaged: {error}") from error
    small = whole.resize(pixels, reducing_gap=2.0)
    if small.mode == "RGBA":
        alpha = small.getchannel("A")
        small = small.convert("RGB")
        small.paste("white", mask=alpha.point(lambda share: 255 - share))
    return Fitted(small, columns, rows, animated)
