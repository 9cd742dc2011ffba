"""Runs a program that the trainer needs (npm, uv, veRL): an argument list, no shell, its lines as they come.

Knows nothing about what the programs do; whoever calls names the step for the error message.
"""

import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openforge.errors import InfraError

_TAIL_LINES = 15
_LIBC = ctypes.CDLL(None)


def run_program(
    argv: Sequence[str],
    *,
    step: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run `argv` to its end with `env` added to ours, handing over each line of its output (both streams together).

    Raises InfraError with the last lines when the program is missing or its exit code is not 0. The program is stopped
    when the caller is interrupted.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours to pass on, once
            preexec_fn=_end_with_parent,
        )
    except FileNotFoundError as error:
        raise InfraError(f"{step}: {argv[0]} is not installed", hint="openforge doctor") from error
    try:
        assert process.stdout is not None
        for line in process.stdout:
            tail.append(line.rstrip())
            on_line(line.rstrip())
        code = process.wait()
    finally:
        _stop(process)
    if code != 0:
        raise InfraError(f"{step}: {Path(argv[0]).name} ended with exit code {code}\n" + "\n".join(tail))


def _end_with_parent() -> None:
    """Runs in the child: the kernel kills it when we are gone, however that came about (Linux's PR_SET_PDEATHSIG)."""
    _LIBC.prctl(1, signal.SIGKILL)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
