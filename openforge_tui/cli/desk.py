"""`openforge` alone, or `openforge app`: opens the app."""

import curses
import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from openforge.errors import UsageError
from openforge_tui.actions import MODES
from openforge_tui.cli import settings


def register(app: typer.Typer) -> None:
    app.command("app")(desk)


def desk(
    mode: Annotated[
        str, typer.Argument(help=f"Where to begin: {', '.join(mode.noun for mode in MODES)}.")
    ] = "overview",
    readonly: Annotated[bool, typer.Option("--readonly", help="Look only: whatever changes something is off.")] = False,
) -> int:
    """Open the app: bring it up, watch it, ask it, train it. Also `openforge` alone."""
    from openforge_tui.app import Opening, open_desk

    check_mode(mode)
    if "TEXTUAL_DRIVER" not in os.environ and not (sys.stdin.isatty() and sys.stderr.isatty()):  # a tab has a driver
        raise UsageError("the app needs a terminal: no key would reach it here", hint="openforge runs, openforge web")
    _suit(os.environ.get("TERM", ""))
    typed = settings.current()
    return open_desk(Opening(typed.load(), typed.words(), readonly or typed.readonly, mode))


def _suit(term: str) -> None:
    """UsageError on a terminal that only takes lines; one that has no colours by its description is given none."""
    if "TEXTUAL_DRIVER" in os.environ:
        return
    if term == "dumb":
        raise UsageError(
            "the app needs a terminal that can move its cursor, and TERM=dumb says that this one cannot",
            hint="openforge runs, openforge web; where it can: TERM=xterm-256color openforge",
        )
    with suppress(curses.error):  # nobody described it: it is taken for a usual one
        curses.setupterm(term, sys.stderr.fileno())
        if curses.tigetnum("colors") < 0:
            os.environ.setdefault("NO_COLOR", "1")


def check_mode(mode: str) -> None:
    """Raises UsageError for what is no view."""
    if mode not in {mode.noun for mode in MODES}:
        raise UsageError(f"there is no view {mode!r}", hint=f"one of {', '.join(mode.noun for mode in MODES)}")
