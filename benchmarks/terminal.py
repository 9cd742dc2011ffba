"""A program in a pseudo-terminal: what it draws is thrown away, how soon it answers a key is measured."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_QUIET_S = 0.15  # without output: what a key caused has been drawn
_POINTER = re.compile(rb"\x1b\]22;[^\x07]*\x07")  # the mouse pointer's shape, which nobody waits for


class Terminal:
    """Use as `with Terminal(argv) as terminal:`; the program is ended when it is left."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, columns: int = 140, lines: int = 45
    ) -> None:
        self._argv, self._env, self._cwd = list(argv), dict(env), cwd
        self._size = struct.pack("HHHH", lines, columns, 0, 0)
        self.peak_mb = 0.0

    def __enter__(self) -> Self:
        self.started = time.perf_counter()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(self._cwd)
            os.execvpe(self._argv[0], self._argv, {**os.environ, **self._env})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, self._size)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)

    def read_until(self, text: str, limit_s: float = 60) -> float:
        """Seconds from the start until `text` was drawn. Raises TimeoutError."""
        seen = ""
        end = time.perf_counter() + limit_s
        while time.perf_counter() < end:
            seen += self._read(0.05)
            if text in seen:
                return time.perf_counter() - self.started
        raise TimeoutError(f"{text!r} was not drawn; the last of what was: {seen[-400:]!r}")

    def settle(self, limit_s: float = 20) -> None:
        """Until nothing has been drawn for a moment (but what is drawn every second)."""
        end = time.perf_counter() + limit_s
        while self._read(_QUIET_S) and time.perf_counter() < end:
            pass

    def key(self, keys: str) -> float:
        """Seconds from pressing to the first thing drawn because of it."""
        self.settle()
        began = time.perf_counter()
        os.write(self._fd, keys.encode())
        while not self._read(0.002) and time.perf_counter() < began + 10:
            pass
        return time.perf_counter() - began

    def cpu_s(self) -> float:
        """CPU seconds of the program so far, its threads included."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Resident memory now, its children's included."""
        found = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            except OSError:
                continue
            if facts.get("PPid", "").strip() == str(self.pid) or facts.get("Pid", "").strip() == str(self.pid):
                found += int(facts.get("VmRSS", "0 kB").split()[0])
        self.peak_mb = max(self.peak_mb, found / 1024)
        return found / 1024

    def _read(self, wait_s: float) -> str:
        ready, _, _ = select.select([self._fd], [], [], wait_s)
        return _POINTER.sub(b"", os.read(self._fd, 1 << 16)).decode(errors="replace") if ready else ""
