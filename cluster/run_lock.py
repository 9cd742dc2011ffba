"""One orchestrator a run: a lock on a file in the run's folder, which ends with the process that holds it."""

import fcntl
import os
import time
from pathlib import Path

from openforge.errors import UsageError

FILE_NAME = "orchestrator.lock"
_TRIES, _LOOK_S = 5, 0.01  # whoever looks (`is_held`) has it for a moment


def is_held(run_dir: Path) -> bool:
    """Whether an orchestrator has the run, in this very folder: a copy of the folder is nobody's."""
    try:
        fd = os.open(run_dir / FILE_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class RunLock:
    """Held from `take` to `drop`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._fd = run_dir, -1

    def take(self) -> None:
        """Raises UsageError when another orchestrator has the run."""
        fd = os.open(self._run_dir / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        for again in range(_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_S if again + 1 < _TRIES else 0)
            else:
                self._fd = fd
                return
        os.close(fd)
        raise UsageError(
            f"run {self._run_dir.name} is going on: another orchestrator has it",
            hint="wait for its end, or interrupt it",
        )

    def drop(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
