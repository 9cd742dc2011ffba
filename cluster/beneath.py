"""Paths below a folder that untrusted code has filled: used by the host without following what was planted there.

A link at any step, an absolute path or one that goes up is refused. Nobody may change the folder meanwhile: every
process of its sandbox is dead when the host comes here.
"""

import os
import shutil
from pathlib import Path, PurePosixPath

from openforge.errors import InfraError


class LeavesFolder(InfraError):
    """A path that would lead out of the folder it was given for."""


def beneath(root: Path, relative: str) -> Path:
    """`root / relative`, of which no step is a link; it need not exist. LeavesFolder, OSError."""
    steps = PurePosixPath(relative)
    if steps.is_absolute() or ".." in steps.parts:
        raise LeavesFolder(f"{relative!r} is not a path inside the sandbox's folder")
    path = root
    for step in steps.parts:
        path = path / step
        if path.is_symlink():
            raise LeavesFolder(f"{relative!r} leads through a link at {str(path.relative_to(root))!r}")
    return path


def write_beneath(root: Path, relative: str, text: str) -> None:
    """Write a file and the folders on the way. LeavesFolder, OSError."""
    path = beneath(root, relative)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not blocking: what stands there already may be a FIFO.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)


def copy_beneath(root: Path, source: str, target: str) -> None:
    """Copy a folder inside `root`, links as links; nothing when there is none or the target is there. LeavesFolder."""
    start, end = beneath(root, source), beneath(root, target)
    if start == end or end.exists() or not start.is_dir():
        return
    if end.is_relative_to(start):
        raise LeavesFolder(f"{target!r} lies inside {source!r}, of which it would be a copy")
    try:
        shutil.copytree(start, end, symlinks=True)
    except (OSError, RecursionError) as error:
        raise InfraError(f"{source!r} cannot be copied to {target!r}: {str(error)[:300]}") from error
