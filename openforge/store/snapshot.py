"""Which files hold the records of a store, as listed at one moment.

Of a compacted run the Parquet files, of the rest the segments, so that each record is read once. A segment that is
still written is held open, so that it can be read after it was sealed (renamed). Takes no lock, changes nothing.
Does not know SQL.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from openforge.errors import InfraError
from openforge.journal.segments import Segment, all_segments

_BLOCK = 1 << 16
_HEADER = 256
_SEQ = re.compile(rb'\{"v":\d+,"recorder_id":"[^"]*","seq":(\d+)')
_BY_DESCRIPTOR = Path("/proc/self/fd")  # only Linux opens the same file again by this name


class _Held:
    """A file kept open for as long as this object lives."""

    fd = -1

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


@dataclass(frozen=True)
class Source:
    """One segment: under which path to read it, and what it is called. `end`: the first seq that is not its own."""

    run_id: str
    recorder_id: str
    name: str
    path: Path
    size: int
    end: int | None = None
    held: _Held | None = field(default=None, repr=False)


@dataclass
class Snapshot:
    """The files of some runs; they can be read while this object lives."""

    parquet: dict[str, list[Path]] = field(default_factory=dict)  # by kind
    segments: list[Source] = field(default_factory=list)
    vocabs: list[Path] = field(default_factory=list)
    live: list[tuple[str, str]] = field(default_factory=list)  # (run_id, recorder_id) of writers that hold their file
    unreadable: list[tuple[str, str, str, int]] = field(default_factory=list)  # of compacted segments

    def files(self) -> list[Path]:
        """Everything that a query may open."""
        parquet = [path for paths in self.parquet.values() for path in paths]
        return [*parquet, *(source.path for source in self.segments), *self.vocabs]


def known_runs(store_root: Path) -> list[str]:
    """The run ids in a store, oldest first."""
    try:
        with os.scandir(store_root / "runs") as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def take_snapshot(store_root: Path, runs: Iterable[str] | None = None) -> Snapshot:
    """List the files to read; a run that vanishes while it is listed is left out."""
    snapshot = Snapshot(vocabs=sorted((store_root / "vocab").glob("*.jsonl")))
    for run_id in known_runs(store_root) if runs is None else runs:
        try:
            _add_run(snapshot, run_id, store_root / "runs" / run_id)
        except FileNotFoundError:
            continue
    return snapshot


def live_writers(run_dir: Path) -> set[str]:
    """The writers of a run that are alive, by their recorder ids."""
    found = set()
    for segment in all_segments(run_dir):
        if not segment.sealed:
            try:
                held = _Held(segment.path)
                if _is_locked(held.fd):
                    found.add(segment.recorder_id)
            except FileNotFoundError:  # sealed since it was listed
                continue
    return found


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """What compaction has made of a run: `{"segments": {name: unreadable lines}, "files": {kind: [name …]}}`, and under
    `digests` the content of each of those files, by its path in the run's folder.
    """
    path = run_dir / "parquet" / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {"segments": {}, "files": {}, "digests": {}}
    except ValueError as error:
        raise InfraError(f"{path} is damaged: {error}", hint="delete it; the next compaction makes it again") from None
    return manifest


def segment_key(recorder_id: str, first_seq: int) -> str:
    """The name of a segment in the manifest."""
    return f"{recorder_id}/{first_seq:012d}"


def _add_run(snapshot: Snapshot, run_id: str, run_dir: Path) -> None:
    # Segments first, the manifest second: what is compacted in between is then read as Parquet, not twice.
    listed = list(all_segments(run_dir))
    manifest = read_manifest(run_dir)
    for kind, names in manifest["files"].items():
        snapshot.parquet.setdefault(kind, []).extend(run_dir / "parquet" / name for name in names)
    for key, lines in manifest["segments"].items():
        if lines:
            recorder_id, _, name = key.partition("/")
            snapshot.unreadable.append((run_id, recorder_id, name, lines))
    for recorder_id, group in groupby(listed, key=lambda segment: segment.recorder_id):
        segments = list(group)
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if segment_key(recorder_id, segment.first_seq) not in manifest["segments"]:
                _add_segment(snapshot, run_id, segment, following)


def _add_segment(snapshot: Snapshot, run_id: str, segment: Segment, following: Segment | None) -> None:
    path, held = segment.path, None
    if not segment.sealed:
        try:
            held = _Held(path)
        except FileNotFoundError:  # sealed since it was listed
            path = segment.sealed_path()
    if held is not None:
        if _is_locked(held.fd):
            snapshot.live.append((run_id, segment.recorder_id))
        if _BY_DESCRIPTOR.is_dir():
            path = _BY_DESCRIPTOR / str(held.fd)
    overlaps = following is not None and (last_seq(path) or 0) >= following.first_seq
    end = following.first_seq if following is not None and overlaps else None
    size = path.stat().st_size
    snapshot.segments.append(Source(run_id, segment.recorder_id, segment.path.name, path, size, end, held))


def last_seq(path: Path) -> int | None:
    """The seq of the last whole line of a segment. One that reaches into the next segment was shipped twice."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        newlines: list[int] = []  # the last ones, from the end
        while position > 0 and len(newlines) < 2:
            start = max(0, position - _BLOCK)
            file.seek(start)
            block = file.read(position - start)
            newlines += [start + at for at in range(len(block) - 1, -1, -1) if block[at] == 10][:2]
            position = start
        file.seek(newlines[1] + 1 if len(newlines) > 1 else 0)
        found = _SEQ.match(file.read(_HEADER))
    return int(found[1]) if found and newlines else None


def _is_locked(fd: int) -> bool:
    """Whether a living writer holds this segment."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
