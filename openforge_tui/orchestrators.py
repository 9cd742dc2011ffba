"""The processes of runs that are going on: which one a run has, and how it is asked to end. Sends no SIGKILL, ever."""

import json
import os
import signal
from pathlib import Path

from cluster.http import FILE_NAME
from cluster.run_lock import is_held
from openforge.errors import InfraError
from openforge_tui.jobs import Jobs


def pid_of(store_root: Path, run_id: str) -> int | None:
    """The process of a run's orchestrator, as it told; None when it has told none, or when this is but a copy."""
    run_dir = store_root / "runs" / run_id
    try:
        if not is_held(run_dir):
            return None
        pid = int(json.loads((run_dir / FILE_NAME).read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return pid if pid > 0 else None  # to the kernel, 0 and less are whole groups of processes


def is_alive(pid: int) -> bool:
    """Whether there is such a process, whoever's it is; no process is called 0."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's, and alive
    return pid > 0


def stop_orchestrator(jobs: Jobs, pid: int) -> bool:
    """Ask it to end in good order, as Ctrl-C does, by its job when it is one of ours; False when it has ended.

    Raises InfraError when it is somebody else's.
    """
    parent = _parent(pid)
    for job in jobs.all():
        if job.running and parent == job.pid:
            jobs.stop(job)
            return True
    try:
        os.kill(pid, signal.SIGINT)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        raise InfraError(f"process {pid} is another user's, who alone can end it", hint=f"ps -fp {pid}") from None
    return True


def _parent(pid: int) -> int | None:
    try:
        about = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None  # it ended, or this is no Linux: it is asked itself
    return int(about.rpartition(")")[2].split()[1])
