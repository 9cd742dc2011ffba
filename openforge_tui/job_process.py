"""The process of one job: `python -m openforge_tui.job_process FOLDER CWD WORDS …`. Standard library alone.

Hands the signals that end work in good order on to the command, and writes how it ended. When it is killed itself, the
command is asked to end, since nobody would know of it any more.
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_CODE = 4  # characters of an exit code


def main() -> int:
    folder, cwd, *words = sys.argv[1:]
    child: subprocess.Popen[bytes] | None = None
    asked = 0

    def hand_on(number: int, _frame: object) -> None:
        nonlocal asked
        asked = number
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    ended = Path(folder) / "exit.new"
    ended.write_text(" " * _CODE)  # room for the code, should the disk be full by then
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "openforge_tui", *words],
        cwd=cwd,
        preexec_fn=lambda: libc.prctl(1, signal.SIGTERM),  # PR_SET_PDEATHSIG
    )
    if asked:
        child.send_signal(asked)
    code = child.wait()
    with ended.open("r+") as file:
        file.write(str(code if code >= 0 else 128 - code).ljust(_CODE))
    os.replace(ended, Path(folder) / "exit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
