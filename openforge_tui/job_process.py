"""The process of one job: `python -m openforge_tui.job_process FOLDER CWD WORDS …`. Standard library alone.

Holds a lock on the job's output for as long as the command runs, hands SIGINT and SIGTERM on to it, and writes how it
ended.
"""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path


def main() -> int:
    folder, cwd, *words = sys.argv[1:]
    fcntl.flock(sys.stdout, fcntl.LOCK_EX)
    child: subprocess.Popen[bytes] | None = None
    asked = 0

    def hand_on(number: int, _frame: object) -> None:
        nonlocal asked
        asked = number
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    child = subprocess.Popen([sys.executable, "-m", "openforge_tui", *words], cwd=cwd)
    if asked:
        child.send_signal(asked)
    code = child.wait()
    ended = Path(folder) / "exit.new"
    ended.write_text(str(code if code >= 0 else 128 - code))
    os.replace(ended, Path(folder) / "exit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
