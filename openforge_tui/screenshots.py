"""Pictures of the app for the README: `./just screenshots --project FOLDER` writes docs/screens/*.svg.

The real app over a real store, driven by keys; nothing is drawn for the picture. An SVG names no address and needs no
font that is not there. Does not know the screens beyond the keys that lead to them.
"""

import argparse
import asyncio
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

from textual.pilot import Pilot

from openforge.config import load
from openforge.errors import TimeLimitError
from openforge_tui.app import Desk, Opening
from openforge_tui.screens.view import View


class Shot(NamedTuple):
    """One picture: where the app opens, and the keys from there; `~WORD` waits until that word is on the screen."""

    name: str
    mode: str
    keys: tuple[str, ...] = ()


_ROLLOUT = ("enter", "slash", *"react", "enter", "enter")  # one with a short prompt
SHOTS = (
    Shot("runs", "runs"),
    Shot("rollouts", "runs", ("enter",)),
    Shot("rollout", "runs", _ROLLOUT),
    Shot("tokens", "runs", (*_ROLLOUT, "right_square_bracket", "down", "~struck")),
    Shot(
        "sql",
        "sql",
        ("f3", "down", "enter", "f5", "~ctrl+j", "escape"),  # where reward was lost
    ),
    Shot("train", "train", ("~mean",)),
    Shot("promote", "promote"),
    Shot("help", "runs", ("question_mark",)),
)
_SIZE = (120, 34)
_WAIT_S = 20.0
_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_SHRINK = (
    (re.compile(r"<!--.*?-->\s*", re.DOTALL), ""),
    (re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL), ""),
    (re.compile(r"font-family: Fira Code, monospace"), f"font-family: {_FONT}"),
    (re.compile(r"font-family: arial"), "font-family: system-ui, sans-serif"),
    (re.compile(r"terminal-\d+-"), "t-"),
    (re.compile(r">\s+<"), "><"),
    (re.compile(r'<clipPath id="t-line-\d+">.*?</clipPath>| clip-path="url\(#t-line-\d+\)"'), ""),
    (re.compile(r"<text [^>]*></text>"), ""),
    (re.compile(r' shape-rendering="crispEdges"'), ""),
    (re.compile(r"<style>"), "<style>rect { shape-rendering: crispEdges }"),
    (re.compile(r"&#160;"), "\u00a0"),
)


def plain_svg(svg: str) -> str:
    """Rich's SVG without the fonts that it would fetch, and shorter."""
    for pattern, instead in _SHRINK:
        svg = pattern.sub(instead, svg)
    return svg


async def take(shot: Shot, project: Path) -> str:
    """The SVG of one shot. Raises what the app raises."""
    desk = Desk(Opening(load(project), readonly=False, mode=shot.mode))
    desk.animation_level = "none"
    async with desk.run_test(size=_SIZE) as pilot:
        await _settle(pilot)
        for key in shot.keys:
            if key.startswith("~") and len(key) > 1:
                await _until_shown(pilot, key[1:])
            else:
                await pilot.press(key)
            if len(key) > 1:  # not a letter of a text
                await _settle(pilot)
        return plain_svg(desk.export_screenshot(title="openforge"))


async def _until_shown(pilot: Pilot[None], word: str) -> None:
    ends_at = time.monotonic() + _WAIT_S
    while word not in pilot.app.export_screenshot():
        if time.monotonic() > ends_at:
            raise TimeLimitError(f"{word!r} was not shown within {_WAIT_S:.0f} s")
        await pilot.pause(0.1)


async def _settle(pilot: Pilot[None]) -> None:
    """Until the screen in front has read what there is since now."""
    await pilot.pause()
    view = pilot.app.screen
    if not isinstance(view, View):
        return
    ends_at = time.monotonic() + _WAIT_S
    for first in (True, False):  # what is being read now may have begun before the last key
        before = 0 if first else view.loads
        view.look_again()
        while view.loads == before and view.is_current and pilot.app.return_code is None:
            if time.monotonic() > ends_at:
                raise TimeLimitError(f"{type(view).__name__} did not come to rest in {_WAIT_S:.0f} s")
            await pilot.pause(0.05)
    await pilot.pause()


def main() -> int:
    parser = argparse.ArgumentParser(description="Write pictures of the app to docs/screens.")
    parser.add_argument("--project", type=Path, default=Path.cwd(), help="a folder with runs (default: here)")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent.parent / "docs" / "screens", help="a folder")
    parser.add_argument("name", nargs="*", help=f"which: {', '.join(shot.name for shot in SHOTS)} (default: all)")
    asked = parser.parse_args()
    if unknown := set(asked.name) - {shot.name for shot in SHOTS}:
        parser.error(f"no picture is called {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SHOTS)}")
    asked.to.mkdir(parents=True, exist_ok=True)
    failed = 0
    for shot in SHOTS:
        if asked.name and shot.name not in asked.name:
            continue
        try:
            svg = asyncio.run(take(shot, asked.project.absolute()))
        except Exception as error:  # one screen that fails must not cost the pictures of the others
            print(f"{shot.name}: not taken: {type(error).__name__}: {error}", file=sys.stderr)
            failed += 1
            continue
        path = asked.to / f"{shot.name}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path)
        if str(Path.home()) in svg or str(asked.project.absolute()) in svg:
            print(f"{shot.name}: it shows a path of this machine", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
