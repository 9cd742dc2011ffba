"""Where the records of a run lie: `<run_dir>/journal/<recorder_id>/<first_seq>.jsonl[.open]`.

A segment is `.open` while its writer holds a lock on it, `.jsonl` once sealed; only the writer's own rename or
`seal_abandoned` changes the name, the content before the last newline never changes.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OPEN = ".jsonl.open"
SEALED = ".jsonl"
NEW = ".new"  # made and locked under this name first, so that a visible `.open` without a lock has no living writer


class Segment(NamedTuple):
    """One file as it was listed; it may have been sealed since."""

    recorder_id: str
    first_seq: int
    path: Path

    @property
    def sealed(self) -> bool:
        return not self.path.name.endswith(OPEN)

    def sealed_path(self) -> Path:
        return self.path.with_name(self.path.name.removesuffix(".open"))


def journal_dir(run_dir: Path) -> Path:
    return run_dir / "journal"


def segment_name(first_seq: int) -> str:
    return f"{first_seq:012d}{OPEN}"


def recorders(run_dir: Path) -> list[str]:
    """The recorder ids that have written to this run, sorted."""
    try:
        with os.scandir(journal_dir(run_dir)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def segments(run_dir: Path, recorder_id: str) -> list[Segment]:
    """The segments of one recorder in order; a segment that is sealed while the folder is listed counts once."""
    found: dict[int, Segment] = {}
    for name in sorted(os.listdir(journal_dir(run_dir) / recorder_id)):
        stem = name.removesuffix(".open").removesuffix(SEALED)
        if stem.isdigit() and name in (stem + SEALED, stem + OPEN):
            found.setdefault(int(stem), Segment(recorder_id, int(stem), journal_dir(run_dir) / recorder_id / name))
    return [found[first_seq] for first_seq in sorted(found)]


def all_segments(run_dir: Path) -> Iterator[Segment]:
    """Every segment of a run, by recorder id and then by order."""
    for recorder_id in recorders(run_dir):
        yield from segments(run_dir, recorder_id)


def sync_dir(path: Path) -> None:
    """Make a rename in `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
