"""Sandbox folders as trees that an agent built: given away, measured and removed whatever is in them.

Trees may be deeper than a path can be long, closed to their owner, and full of links. coreutils walk them with open
folders instead of paths and follow no link, so that is who does it.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from openforge.errors import InfraError
from openforge.program import run_program

_WALK_S = 300.0


def own_tree(folder: Path, user: int) -> None:
    """Give `folder` and all below it to `user`. Needs root. InfraError."""
    chown = ["chown", "-hR", f"{user}:{user}", "--", str(folder)]
    run_program(chown, step="giving files to the sandbox", timeout_s=_WALK_S, brief=True)


def remove_tree(folder: Path) -> bool:
    """Remove `folder`, or a file or link. False when something of it is left, which the next start removes."""
    remove = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    for before in ([], ["chmod", "-R", "u+rwX", "--", str(folder)]):  # its owner may have closed folders to itself
        with suppress(InfraError):
            if before:
                run_program(before, step="opening closed folders", timeout_s=_WALK_S)
        with suppress(InfraError):
            run_program(remove, step="removing a sandbox's folder", timeout_s=_WALK_S, brief=True)
        if not os.path.lexists(folder):
            return True
    return False


async def disk_bytes(folders: Sequence[Path], timeout_s: float) -> int:
    """Room that the folders take, hard links once. TimeoutError when they hold too much to be counted."""
    argv = ["du", "-s", "--block-size=1", "--", *map(str, folders)]
    if os.geteuid() != 0:  # as root of a name space of its own it also sees what the sandbox closed to itself
        argv = ["unshare", "--map-root-user", *argv]
    quiet = asyncio.subprocess.DEVNULL
    # Cancelled while it starts a program, asyncio takes the exit status from its own watcher, which then complains.
    start = asyncio.create_subprocess_exec(*argv, stdin=quiet, stdout=asyncio.subprocess.PIPE, stderr=quiet)
    starting = asyncio.ensure_future(start)
    said = b""
    try:
        process = await asyncio.shield(starting)
        said, _ = await asyncio.wait_for(process.communicate(), timeout_s)
    finally:
        process = await starting
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # asyncio's own kill takes the status away as well
            await process.wait()
    return sum(int(line.split(b"\t")[0]) for line in said.splitlines() if line[:1].isdigit())
