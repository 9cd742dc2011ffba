"""Long work that the app starts: each is an `openforge` command in a session of its own, which the app only watches.

So quitting the app ends nothing, an app that is opened later finds what is still going on, and what was done here is a
command that a person can type. A job is a folder: `job.json`, `output.log`, and `exit` once it has ended.
"""

import fcntl
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cluster.detached import spawn
from openforge.errors import InfraError

State = Literal["running", "done", "failed", "stopped", "lost"]


@dataclass(frozen=True)
class Job:
    """One command. `started_at` in Unix seconds; `exit_code` when it has ended by itself."""

    folder: Path
    title: str
    argv: tuple[str, ...]
    pid: int
    started_at: float
    exit_code: int | None
    running: bool

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def state(self) -> State:
        """`lost`: its process was killed, so nobody knows how far it came."""
        if self.running:
            return "running"
        if self.exit_code is None:
            return "lost"
        return "done" if self.exit_code == 0 else "stopped" if self.exit_code == 130 else "failed"

    @property
    def command(self) -> str:
        """As a person would type it."""
        return shlex.join(("openforge", *self.argv))


class Jobs:
    """The jobs of one project. `base`: the words that every command begins with (project, target …)."""

    def __init__(self, root: Path, base: Sequence[str] = (), cwd: Path | None = None) -> None:
        self._root, self._base, self._cwd = root, tuple(base), cwd

    def start(self, title: str, argv: Sequence[str]) -> Job:
        """Start `openforge ARGV …`. Raises InfraError."""
        words = (*self._base, *argv)
        try:
            folder = self._new_folder()
            about = {"title": title, "argv": words, "started_at": time.time()}
            (folder / "job.json").write_text(json.dumps(about))
            environment = {**os.environ, "OPENFORGE_PROGRAM_LOG": str(folder / "programs.log")}
            command = [
                sys.executable,
                "-m",
                "openforge_tui.job_process",
                str(folder),
                str(self._cwd or Path.cwd()),
                *words,
            ]
            process = spawn(command, environment, folder / "output.log")
            (folder / "pid").write_text(str(process.pid))
        except OSError as error:
            raise InfraError(
                f"cannot start `{shlex.join(('openforge', *words))}`: {error}", hint="openforge doctor"
            ) from None
        return Job(folder, title, words, process.pid, float(about["started_at"]), None, running=True)  # type: ignore[arg-type]

    def all(self) -> list[Job]:
        """Every job that is remembered, the newest first."""
        folders = sorted(self._root.iterdir(), reverse=True) if self._root.is_dir() else []
        return [job for job in map(_read, folders) if job is not None]

    def stop(self, job: Job) -> None:
        """Ask it to end in good order, as Ctrl-C does."""
        with suppress(ProcessLookupError):
            if job.running:
                os.kill(job.pid, signal.SIGINT)

    def _new_folder(self) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        number = max((int(folder.name) for folder in self._root.iterdir() if folder.name.isdecimal()), default=0)
        while True:
            number += 1
            folder = self._root / f"{number:05d}"
            with suppress(FileExistsError):  # another app took it
                folder.mkdir()
                return folder


def _read(folder: Path) -> Job | None:
    try:
        about = json.loads((folder / "job.json").read_text())
        pid = int((folder / "pid").read_text())
    except (OSError, ValueError):
        return None  # it is being made, or was never started
    try:
        code: int | None = int((folder / "exit").read_text())
    except (OSError, ValueError):
        code = None
    running = code is None and _held(folder / "output.log", about["started_at"])
    return Job(folder, about["title"], tuple(about["argv"]), pid, about["started_at"], code, running)


def _held(log: Path, started_at: float) -> bool:
    """Whether the job's process lives: it holds a lock on its output. A PID could be somebody else's by now."""
    try:
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return time.time() - started_at < 2  # it has not come to its lock yet
