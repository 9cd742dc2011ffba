"""How images are drawn is told by the environment; the terminal is never asked."""

import io
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import PIL.Image
import pytest

from openforge_tui.graphics import cell_size, fit, way_of
from tests.openforge.pictures import encoded

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("environ", "way"),
    [
        ({}, "cells"),
        ({"TERM": "xterm-256color"}, "cells"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "WezTerm"}, "sixel"),
        ({"TERM": "foot"}, "sixel"),
        ({"KONSOLE_VERSION": "240802"}, "sixel"),
        ({"TERM": "tmux-256color"}, "cells"),
        ({"KITTY_WINDOW_ID": "1", "TMUX": "/tmp/tmux"}, "cells"),
        ({"TERM": "screen", "TERM_PROGRAM": "WezTerm"}, "cells"),
    ],
)
def test_the_environment_tells_what_the_terminal_can(environ: dict[str, str], way: str) -> None:
    assert way_of("auto", environ, truecolor=True) == way
    assert way_of("sixel", environ, truecolor=True) == "sixel", "unless the person knows better"


def test_kittys_pictures_need_all_colours() -> None:
    assert way_of("auto", {"TERM": "xterm-kitty"}, truecolor=False) == "cells"


_DRAW = """
import sys
sys.path.insert(0, {root!r})
from openforge_tui.graphics import cell_size, widget_class
assert sys.__stdout__.isatty()
kind = widget_class({way!r}, cell_size())
sys.stderr.write(f"{{kind.__name__}} {{cell_size()}}")
"""


@pytest.mark.parametrize(("way", "name"), [("kitty", "TGPImage"), ("sixel", "Image"), ("cells", "HalfcellImage")])
def test_a_terminal_is_not_asked_so_that_nothing_is_waited_for(way: str, name: str) -> None:
    here, there = pty.openpty()
    code = _DRAW.format(root=str(ROOT), way=way)
    ended = subprocess.run(
        [sys.executable, "-c", code], stdin=there, stdout=there, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.stderr == f"{name} (10, 20)"
    assert select.select([here], [], [], 0)[0] == [], "nothing was written to it"
    os.close(here)
    os.close(there)


def test_a_picture_is_fitted_into_its_cells() -> None:
    fitted = fit(encoded("PNG", (640, 480)), "cells", (80, 20), (10, 20))
    assert (fitted.columns, fitted.rows, fitted.picture.size) == (53, 20, (53, 40))
    fitted = fit(encoded("JPEG", (640, 480)), "kitty", (80, 20), (9, 18))
    assert fitted.picture.size == (fitted.columns * 9, fitted.rows * 18)
    assert fit(encoded("PNG", (3000, 1)), "cells", (80, 20), (10, 20)).rows == 1


def test_what_is_transparent_is_white_and_what_moves_says_so() -> None:
    file = io.BytesIO()
    PIL.Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(file, "PNG")
    assert fit(file.getvalue(), "cells", (4, 2), (1, 2)).picture.getpixel((0, 0)) == (255, 255, 255)
    file = io.BytesIO()
    frames = [PIL.Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert fit(file.getvalue(), "cells", (4, 2), (1, 2)).animated


def test_a_picture_that_breaks_off_is_damaged() -> None:
    with pytest.raises(ValueError, match="damaged: image file is truncated"):
        fit(encoded()[:300], "cells", (80, 20), (10, 20))


def test_where_the_kernel_does_not_know_a_cell_is_10_by_20(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.__stdout__", None)
    assert cell_size() == (10, 20)
