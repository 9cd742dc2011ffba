"""Long work that the app starts: each is an `openforge` command in a session of its own, which the app only watches.

So quitting the app ends nothing, an app that is opened later finds what is still going on, and what was done here is a
command that a person can type. A job is a folder: `job.json`, `pid`, `output.log`, `programs.log` when it ran some, and
`exit` once it has ended by itself. Its processes hold a lock on `output.log` from their first moment to their last.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from cluster.detached import Detached
from openforge.errors import InfraError
from openforge.program_log import PROGRAM_LOG

State = Literal["running", "done", "failed", "stopped", "lost"]
MEANINGS = {
    0: "ok",
    1: "the work failed",
    2: "what was typed or configured is wrong",
    3: "the machine or a service failed; trying again may help",
    4: "a time limit was reached",
    5: "a check found something",
    130: "interrupted or cancelled",
}
KEPT = 50
_TAIL_BYTES, _HEAD_BYTES = 1 << 14, 1 << 18


@dataclass(frozen=True)
class Job:
    """One command. Times in Unix seconds; `exit_code` and `ended_at` when it has ended by itself."""

    folder: Path
    title: str
    argv: tuple[str, ...]
    process: Detached
    started_at: float
    exit_code: int | None = None
    ended_at: float | None = None
    running: bool = True

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def pid(self) -> int:
        return self.process.pid

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


class Outcome(NamedTuple):
    """How a job ended: its exit code in words, what it said last of an error, its own next step, what came of it."""

    meaning: str
    error: str = ""
    next: str = ""
    result: str = ""


class Jobs:
    """The jobs of one project. `base`: the words that every command begins with (project, target …)."""

    def __init__(self, root: Path, base: Sequence[str] = (), cwd: Path | None = None) -> None:
        self._root, self._base, self._cwd = root, tuple(base), cwd
        self._children: list[subprocess.Popen[bytes]] = []

    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        """What `start(argv)` would run after `openforge`."""
        return (*self._base, *argv)

    def start(self, title: str, argv: Sequence[str]) -> Job:
        """Start `openforge ARGV …`; the oldest that have ended are forgotten. Raises InfraError."""
        words, began = self.words(argv), time.time()
        folder = None
        try:
            self._forget_old()
            folder = self._new_folder()
            (folder / "job.json").write_text(json.dumps({"title": title, "argv": words, "started_at": began}))
            command = [sys.executable, "-P", "-m", "openforge_tui.job_process", str(folder)]
            with (folder / "output.log").open("wb") as output:
                fcntl.flock(output, fcntl.LOCK_EX)  # of the open file, so that whoever inherits it holds it
                process = subprocess.Popen(
                    [*command, str(self._cwd or Path.cwd()), *words],
                    env={**os.environ, PROGRAM_LOG: str(folder / "programs.log")},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._children.append(process)
            found = Detached.of(process.pid)
            try:
                (folder / "pid").write_text(f"{found.pid} {found.start_ticks}")
            except OSError:  # nobody could ever find it again
                process.terminate()
                raise
        except OSError as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise InfraError(
                f"cannot start `{shlex.join(('openforge', *words))}`: {error}", hint="openforge doctor"
            ) from None
        return Job(folder, title, words, found, began)

    def all(self) -> list[Job]:
        """Every job that is remembered, the newest first."""
        self._children = [child for child in self._children if child.poll() is None]
        folders = sorted(self._root.iterdir(), reverse=True) if self._root.is_dir() else []
        return [job for job in map(_read, folders) if job is not None]

    def again(self, job: Job) -> Job:
        """The same job as it is now."""
        for child in self._children:
            child.poll()
        return _read(job.folder) or replace(job, running=job.process.alive())

    def stop(self, job: Job) -> None:
        """Ask it to end in good order, as Ctrl-C does."""
        if job.process.alive():  # a PID could be somebody else's by now
            with suppress(ProcessLookupError):
                os.kill(job.pid, signal.SIGINT)

    def _forget_old(self) -> None:
        for job in self.all()[KEPT - 1 :]:
            if not job.running:
                shutil.rmtree(job.folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        number = max((int(folder.name) for folder in self._root.iterdir() if folder.name.isdecimal()), default=0)
        while True:
            number += 1
            folder = self._root / f"{number:05d}"
            with suppress(FileExistsError):  # another app took it
                folder.mkdir()
                return folder


def outcome(job: Job) -> Outcome:
    """How a job that has ended did so, read from the end of its output."""
    if job.exit_code is None:
        return Outcome("its process was killed; how far it came is not known")
    lines = [line.strip() for line in _tail(job.log).splitlines()]

    def said(prefix: str) -> str:
        return next((line.removeprefix(prefix) for line in reversed(lines) if line.startswith(prefix)), "")

    meaning = MEANINGS.get(job.exit_code) or f"ended by signal {job.exit_code - 128}"
    return Outcome(meaning, said("error: "), said("next: "), said("done: ") if job.exit_code == 0 else "")


def last_line(job: Job) -> str:
    """The newest line that a job printed."""
    return next((line.strip() for line in reversed(_tail(job.log).splitlines()) if line.strip()), "")


def run_id_of(job: Job) -> str | None:
    """The run that a job began, once it has said so."""
    try:
        with job.log.open("rb") as file:
            found = re.search(rb"^run (r[0-9a-z]+): ", file.read(_HEAD_BYTES), re.MULTILINE)
    except OSError:
        return None
    return found[1].decode() if found else None


def programs(job: Job) -> list[str]:
    """The programs that a job ran, each as `HH:MM:SS COMMAND LINE`."""
    try:
        return (job.folder / "programs.log").read_text(errors="replace").splitlines()
    except OSError:
        return []


def duration(seconds: float) -> str:
    """As a person would say it: `12 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _read(folder: Path) -> Job | None:
    try:
        about = json.loads((folder / "job.json").read_text())
        process = Detached(*map(int, (folder / "pid").read_text().split()))
        running, began = _held(folder / "output.log"), float(about["started_at"])
        time.localtime(began)  # a time that there is
        job = Job(folder, str(about["title"]), tuple(map(str, about["argv"])), process, began, running=running)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # it is being made, or could not be started
    try:
        code, ended_at = int((folder / "exit").read_text()), (folder / "exit").stat().st_mtime
    except (OSError, ValueError):
        return job
    return Job(folder, job.title, job.argv, process, job.started_at, code, ended_at, running=False)


def _held(log: Path) -> bool:
    """Whether a process of the job lives: it holds the lock on its output."""
    with log.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
