"""Sealed segments into Parquet, one file a kind and batch, so that a query reads what it needs and not every line.

Idempotent, one at a time per run (flock), and killable anywhere: files are written under another name, synced, renamed,
and count only when the manifest names them, which is replaced last. The segments stay: they are the truth, and what
reads them directly goes on doing so. Does not know the views.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path

import duckdb

from openforge.errors import InfraError
from openforge.journal.records import KINDS
from openforge.journal.seal import seal_abandoned
from openforge.journal.segments import sync_dir
from openforge.store.connect import new_connection, point_at
from openforge.store.schema import raw_name
from openforge.store.snapshot import Snapshot, read_manifest, segment_key, take_snapshot

_BATCH_BYTES = 256 << 20
_TEMPORARY = ".tmp"


@dataclass(frozen=True)
class Compacted:
    """What one call did; `busy` = another process is at it, nothing was done."""

    segments: int = 0
    records: int = 0
    unreadable: int = 0
    busy: bool = False


def compact(run_dir: Path) -> Compacted:
    """Bring every sealed segment of a run (and those of dead writers) into Parquet. Raises InfraError, OSError."""
    try:
        return _compact(run_dir)
    except duckdb.Error as error:
        raise InfraError(f"{run_dir.name}: not compacted: {error}", hint="df -h; free -h") from error


def _compact(run_dir: Path) -> Compacted:
    folder = run_dir / "parquet"
    folder.mkdir(exist_ok=True)
    with _only_one(folder) as alone:
        if not alone:
            return Compacted(busy=True)
        seal_abandoned(run_dir)
        _remove_leftovers(folder, run_dir)
        segments = records = unreadable = 0
        for batch in _batches(take_snapshot(run_dir.parent.parent, [run_dir.name])):
            lines, count = _write_batch(batch, folder, run_dir)
            segments, records, unreadable = segments + len(batch.segments), records + count, unreadable + lines
        return Compacted(segments, records, unreadable)


def changed_files(run_dir: Path) -> list[Path]:
    """Segments and Parquet files that are no longer what they were when the run was compacted, or are gone."""
    digests: dict[str, str] = read_manifest(run_dir).get("digests", {})
    paths = {run_dir / name: digest for name, digest in sorted(digests.items())}
    return [path for path, digest in paths.items() if not path.is_file() or _digest(path) != digest]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "blake2b").hexdigest()


@contextmanager
def _only_one(folder: Path) -> Iterator[bool]:
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def _remove_leftovers(folder: Path, run_dir: Path) -> None:
    """What a killed compaction left: nothing reads it, the manifest does not name it."""
    named = {name for names in read_manifest(run_dir)["files"].values() for name in names}
    for path in folder.iterdir():
        if path.name.endswith((_TEMPORARY, ".parquet")) and path.name not in named:
            path.unlink()


def _batches(snapshot: Snapshot) -> Iterator[Snapshot]:
    batch, size = Snapshot(), 0
    for segment in snapshot.segments:
        if segment.held is not None:  # still open
            continue
        if batch.segments and size + segment.size > _BATCH_BYTES:
            yield batch
            batch, size = Snapshot(), 0
        batch.segments.append(segment)
        size += segment.size
    if batch.segments:
        yield batch


def _write_batch(batch: Snapshot, folder: Path, run_dir: Path) -> tuple[int, int]:
    """Returns how many lines are no records, and how many are."""
    keys = [_key(source.recorder_id, source.name) for source in batch.segments]
    name = blake2b("\n".join(keys).encode(), digest_size=8).hexdigest()
    manifest = read_manifest(run_dir)
    digests = {source.path: _digest(source.path) for source in batch.segments}
    con = new_connection()
    try:
        point_at(con, batch)
        damaged = con.execute("FROM raw._unreadable").fetchall()
        lines = dict.fromkeys(keys, 0) | {
            f"{recorder}/{Path(file).stem}": count for _, recorder, file, count in damaged
        }
        total = 0
        for kind in KINDS:
            path = folder / f"{kind}-{name}.parquet"
            if count := _write_kind(con, kind, path):
                manifest["files"].setdefault(kind, []).append(path.name)
                digests[path] = _digest(path)
                total += count
    finally:
        con.close()
    sync_dir(folder)
    manifest["segments"] |= lines
    manifest["digests"] = manifest.get("digests", {}) | {str(p.relative_to(run_dir)): d for p, d in digests.items()}
    temporary = folder / f"manifest.json{_TEMPORARY}"
    temporary.write_text(json.dumps({"version": 1, **manifest}))
    _sync(temporary)
    temporary.replace(folder / "manifest.json")
    sync_dir(folder)
    return sum(lines.values()), total


def _key(recorder_id: str, name: str) -> str:
    return segment_key(recorder_id, int(name.partition(".")[0]))


def _write_kind(con: duckdb.DuckDBPyConnection, kind: str, path: Path) -> int:
    """Sorted by rollout, so that asking for one rollout skips the rest. Writes no file when there is nothing."""
    temporary = path.with_name(path.name + _TEMPORARY)
    rows = f"SELECT * FROM {raw_name(kind)} ORDER BY rollout_id, recorder_id, seq"
    options = "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192"
    (count,) = con.execute(f"COPY ({rows}) TO '{str(temporary).replace(chr(39), chr(39) * 2)}' ({options})").fetchall()[
        0
    ]
    if not count:
        temporary.unlink()
        return 0
    _sync(temporary)
    temporary.replace(path)
    return int(count)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
