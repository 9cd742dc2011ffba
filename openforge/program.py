"""Runs a program to its end (npm, uv, pip, veRL): an argument list, no shell, its lines as they come.

Knows nothing about what the programs do; whoever calls names the step for the error message. Rollouts do not run
through here (they have sandboxes), nor do servers.
"""

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openforge.errors import InfraError

_TAIL_LINES = 15
_LIBC = ctypes.CDLL(None)


def run_program(
    argv: Sequence[str],
    *,
    step: str,
    timeout_s: float | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
    brief: bool = False,
) -> str:
    """Run `argv` to its end with `env` added to ours; returns its output (both streams together, as its lines came).

    Raises InfraError with the last lines when the program is missing, its exit code is not 0 or it takes longer than
    `timeout_s`. The program and what it started are stopped when the caller is interrupted, and die with us. A `brief`
    one may outlive us by the moment that it takes: what makes it die with us costs more than it does itself.
    """
    lines: list[str] = []
    if not brief and "OPENFORGE_PROGRAM_LOG" in os.environ:
        from openforge.program_log import note_program  # not in images, whose agent runs programs through this file

        note_program(argv)
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
            preexec_fn=None if brief else end_with_parent,
        )
    except OSError as error:
        raise InfraError(f"{step}: cannot run {argv[0]}: {error.strerror}", hint="openforge doctor") from error
    late = threading.Event()

    def give_up() -> None:
        late.set()
        _stop(process)

    timer = threading.Timer(timeout_s or 0, give_up)
    if timeout_s is not None:
        timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            on_line(line.rstrip())
        code = process.wait()
    finally:
        timer.cancel()
        _stop(process)
    if code != 0:
        how = f"did not end in {timeout_s:g} s" if late.is_set() else f"ended with exit code {code}"
        raise InfraError(f"{step}: {Path(argv[0]).name} {how}\n" + "\n".join(lines[-_TAIL_LINES:]))
    return "\n".join(lines)


def end_with_parent() -> None:
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
