"""Runs a program to its end: an argument list, no shell, a time limit, its own process group, output in the error.

For installs and checks. Rollouts do not run through here (see runtimes/), nor do servers (see policy_server.py).
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from openforge.errors import InfraError

_TAIL = 2000


def run_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    hint: str = "",
) -> str:
    """Standard output and error, joined. InfraError with the end of the output when it fails or takes too long."""
    shown = shlex.join(argv)
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise InfraError(f"cannot run {shown}: {error.strerror}", hint=hint) from error
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException as error:  # whatever ends the wait, the children must not outlive it
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise InfraError(f"{shown} did not end in {timeout_s:g} s: {_tail(output)}", hint=hint) from error
        raise
    if process.returncode:
        raise InfraError(f"{shown} ended with {process.returncode}: {_tail(output)}", hint=hint)
    return output.decode(errors="replace")


def _tail(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-_TAIL:]
