"""The programs that a command runs, written down as a person would type them, for who started it to show.

The file is named by the variable PROGRAM_LOG; where it is not set nothing is written. One line a program: its clock
time and its command line, without secrets. It never fails the work.
"""

import os
import shlex
import time
from collections.abc import Sequence

from openforge.redact import Redactor

PROGRAM_LOG = "OPENFORGE_PROGRAM_LOG"
_CUT = 4000  # characters of a line; what is longer is data, not a command to type


def note_program(argv: Sequence[str | os.PathLike[str]]) -> None:
    """Add a line for a program that is about to run."""
    path = os.environ.get(PROGRAM_LOG)
    if not path:
        return
    words = Redactor().text(shlex.join(os.fspath(word) for word in argv)).replace("\n", "⏎")
    line = f"{time.strftime('%H:%M:%S')} {words[:_CUT]}{' …' if len(words) > _CUT else ''}\n"
    try:
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(line)
    except OSError:
        return  # a full disk is told by the work itself
