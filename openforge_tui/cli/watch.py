"""`--watch` of lists: a terminal has the table drawn again in its place, others have it printed when it has changed."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from openforge_tui.cli import output

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Again every 2 seconds, until Ctrl-C.")]
PERIOD_S = 2.0
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def watched[T](ask: Callable[[], T], show: Callable[[T], None], watch: bool) -> None:
    """Show what `ask` returns, once or for as long as it is watched."""
    told = ask()
    _clear(watch)
    show(told)
    while watch:
        time.sleep(PERIOD_S)
        before, told = told, ask()
        if sys.stdout.isatty():
            _clear(watch)
            output.say(time.strftime("as of %H:%M:%S; Ctrl-C ends it"))
            show(told)
        elif told != before:
            show(told)


def _clear(watch: bool) -> None:
    if watch and sys.stdout.isatty():
        sys.stdout.write(_HOME_AND_CLEAR)
