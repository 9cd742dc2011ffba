"""Reading a run's records, also while they are written.

Readers take whole lines only. A last line without its newline was being written, or its writer died in mid-write: it
was never acknowledged, so it is skipped and counted. A whole line that is not a record is damage; it is skipped and
counted too. Readers hold no lock and never change a file.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from openforge.journal.encode import decode
from openforge.journal.records import JournalError
from openforge.journal.segments import Segment, all_segments, journal_dir, recorders, segment_name, segments

_CHUNK = 1 << 20
_HEAD = 256  # the header up to `kind` is shorter: v, recorder_id, seq, ts


@dataclass(slots=True)
class ReadStats:
    """What a reader had to leave out."""

    torn: int = 0  # last lines without an end
    damaged: int = 0  # whole lines that are not records


class Place(NamedTuple):
    """Where a record stands; sealing and compaction do not move it."""

    recorder_id: str
    first_seq: int  # of its segment
    offset: int
    size_bytes: int


def read_records(
    run_dir: Path, kinds: Collection[str] | None = None, *, stats: ReadStats | None = None
) -> Iterator[dict[str, Any]]:
    """All records of a run (of these kinds), ordered by (recorder_id, seq)."""
    stats = stats if stats is not None else ReadStats()
    tags = _tags(kinds)
    for segment in all_segments(run_dir):
        with open(_open(segment), "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    stats.torn += 1
                    break  # its end may arrive meanwhile: half a line is no line
                if wanted(line, tags):
                    record = decode(line)
                    if record is None:
                        stats.damaged += 1
                    else:
                        yield record


class Tail:
    """New records since the last `poll`, by file offset: nothing is read twice but a line that had no end yet.

    `role`: only what writers of this role wrote (`orchestrator`, `recorder`); the files of others are not opened.
    """

    def __init__(self, run_dir: Path, kinds: Collection[str] | None = None, *, role: str = "") -> None:
        self.more = False  # the last `poll` left something unread
        self.stats = ReadStats()  # `torn` stays 0: a line without an end may still get one
        self._run_dir = run_dir
        self._tags = _tags(kinds)
        self._role = f"{role}-" if role else ""
        self._at: dict[str, tuple[int, int]] = {}  # recorder_id -> (first_seq of its segment, offset in it)

    def poll(self, max_bytes: int = 64 << 20) -> list[dict[str, Any]]:
        """What came since the last call; about `max_bytes` of it at most, so call again while there is `more`."""
        return [record for _, record in self.poll_places(max_bytes)]

    def poll_places(self, max_bytes: int = 64 << 20) -> list[tuple[Place, dict[str, Any]]]:
        """As `poll`, each record with where it stands, for `read_place` to find it again."""
        found: list[tuple[Place, dict[str, Any]]] = []
        self.more = False
        for recorder_id in recorders(self._run_dir):
            if not recorder_id.startswith(self._role):
                continue
            for segment in segments(self._run_dir, recorder_id):
                first_seq, offset = self._at.get(recorder_id, (-1, 0))
                if segment.first_seq < first_seq:
                    continue
                offset = offset if segment.first_seq == first_seq else 0
                data, self.more = _read_lines(segment, offset, max_bytes)
                max_bytes -= len(data)
                self._at[recorder_id] = (segment.first_seq, offset + len(data))
                for line in data.split(b"\n")[:-1]:
                    if wanted(line, self._tags):
                        record = decode(line)
                        if record is None:
                            self.stats.damaged += 1
                        else:
                            found.append((Place(recorder_id, segment.first_seq, offset, len(line)), record))
                    offset += len(line) + 1
                if self.more or max_bytes <= 0:
                    self.more = True
                    return found
        return found


def read_lines(run_dir: Path, places: Iterable[Place]) -> bytes:
    """The lines that stand there, as they were written, in this order. Raises JournalError when a segment is gone."""
    found: list[bytes] = []
    for (recorder_id, first_seq), group in groupby(places, key=lambda place: place[:2]):
        path = journal_dir(run_dir) / recorder_id / segment_name(first_seq)
        fd = _open(Segment(recorder_id, first_seq, path))
        try:
            found += [os.pread(fd, place.size_bytes, place.offset) for place in group]
        finally:
            os.close(fd)
    return b"".join(line + b"\n" for line in found)


def read_place(run_dir: Path, place: Place) -> dict[str, Any]:
    """The record that stands there. Raises JournalError when it does not any more."""
    path = journal_dir(run_dir) / place.recorder_id / segment_name(place.first_seq)
    fd = _open(Segment(place.recorder_id, place.first_seq, path))
    try:
        record = decode(os.pread(fd, place.size_bytes, place.offset))
    finally:
        os.close(fd)
    if record is None:
        raise JournalError(f"{path} has changed: no record at byte {place.offset}", hint="segments are never edited")
    return record


def _tags(kinds: Collection[str] | None) -> tuple[bytes, ...] | None:
    return None if kinds is None else tuple(f'"kind":"{kind}"'.encode() for kind in kinds)


def wanted(line: bytes, tags: tuple[bytes, ...] | None) -> bool:
    """Whether the header of `line` names one of the kinds; cheaper than parsing a line that is not wanted."""
    return tags is None or any(tag in line[:_HEAD] for tag in tags)


def _open(segment: Segment) -> int:
    for path in (segment.path, segment.sealed_path()):  # it may have been sealed since it was listed
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
    raise JournalError(f"{segment.path} is gone", hint="its records are missing from this run")


def _read_lines(segment: Segment, offset: int, max_bytes: int) -> tuple[bytes, bool]:
    """Whole lines from `offset`, about `max_bytes` of them (the first in any case); True when there was more."""
    fd = _open(segment)
    try:
        available = max(0, os.fstat(fd).st_size - offset)
        data = os.pread(fd, min(available, max_bytes), offset) if available else b""
        while (end := data.rfind(b"\n")) < 0 and len(data) < available:
            data += os.pread(fd, min(available - len(data), _CHUNK), offset + len(data))
        return data[: end + 1], len(data) < available
    finally:
        os.close(fd)
