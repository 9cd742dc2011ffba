"""Sealing what dead writers left: a segment is abandoned when nobody holds its lock.

Killable anywhere: the torn end of a file is copied beside it before it is cut off, and the rename comes last.
"""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from openforge.journal.segments import Segment, all_segments, sync_dir

_TAIL = 1 << 16


class Sealed(NamedTuple):
    """What was done: files sealed now, how many of them ended in a torn line, files with a living writer."""

    paths: list[Path]
    torn: int
    live: int


def seal_abandoned(run_dir: Path) -> Sealed:
    """Seal every open segment of a run whose writer is gone. The torn end of a file is kept as `<first_seq>.torn`."""
    paths: list[Path] = []
    torn = live = 0
    for segment in all_segments(run_dir):
        if segment.sealed:
            continue
        try:
            fd = os.open(segment.path, os.O_RDWR)
        except FileNotFoundError:  # sealed by its writer, or by somebody else, since it was listed
            continue
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                live += 1
                continue
            if not _is_still(segment.path, fd):
                continue
            torn += _cut_torn_end(segment, fd)
            if os.fstat(fd).st_size:
                os.rename(segment.path, segment.sealed_path())
                paths.append(segment.sealed_path())
            else:
                os.unlink(segment.path)
            sync_dir(segment.path.parent)
        finally:
            os.close(fd)
    return Sealed(paths, torn, live)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _cut_torn_end(segment: Segment, fd: int) -> bool:
    size = os.fstat(fd).st_size
    end = size
    while end > 0:
        start = max(0, end - _TAIL)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        torn = segment.path.with_name(f"{segment.first_seq:012d}.torn")
        torn.write_bytes(os.pread(fd, size - end, end))
        os.ftruncate(fd, end)
    os.fsync(fd)
    return end < size
