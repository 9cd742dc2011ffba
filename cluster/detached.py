"""Processes that outlive who started them, such as servers that a later command uses or ends.

A PID alone may have been given to another process since: with it stands when its process started.
"""

import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from openforge.program_log import note_program


@dataclass(frozen=True)
class Detached:
    """One process, as it can be written down."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, start_ticks(pid))

    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], log: Path, *, append: bool = False
) -> subprocess.Popen[bytes]:
    """Start a session of its own, with no input and its output in `log`. OSError."""
    note_program(argv)
    quiet = subprocess.DEVNULL
    with log.open("ab" if append else "wb") as output:
        return subprocess.Popen(
            argv, env=environment, stdin=quiet, stdout=output, stderr=output, start_new_session=True
        )


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 when there is none, or it is a zombie."""
    fields = stat_fields(pid)
    return -1 if not fields or fields[0] == "Z" else int(fields[19])


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on, of which [3] is the session and [19] the start; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
