"""The one writer of a process: every record is one append to this process's own file.

`append` returns when the record is in the kernel: it survives the death of this process from then on, and a power cut
after at most `fsync_interval_s`. A write that fails (disk full, I/O error, file size limit) breaks the writer for
good: it says so in `broken`, and refuses everything after, since a record that is missing in silence is worse than a
rollout that stops. It does not know what the records mean beyond their declaration.
"""

import base64
import fcntl
import os
import threading
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

from openforge.ids import RecorderId, RunId
from openforge.journal.encode import encode
from openforge.journal.records import VERSION, JournalError, RecordError, check
from openforge.journal.segments import NEW, OPEN, SEALED, journal_dir, segment_name, sync_dir

_SEEN_BLOBS = 65_536  # hashes remembered a writer; a blob forgotten is only stored again


def blob_hash(data: bytes) -> str:
    """The name of a blob: blake2b-128 of its bytes, 32 hex digits."""
    return blake2b(data, digest_size=16).hexdigest()


class JournalWriter:
    """Not for two processes: `recorder_id` must be new. Threads may share it."""

    def __init__(
        self,
        run_dir: Path,
        recorder_id: RecorderId,
        run_id: RunId,
        *,
        rotate_bytes: int = 32 << 20,
        fsync_interval_s: float = 1.0,
    ) -> None:
        """Make the folder and the first segment; `fsync_interval_s=0` syncs every record before `append` returns."""
        self.recorder_id = recorder_id
        self.run_id = run_id
        self.broken = ""
        self._dir = journal_dir(run_dir) / recorder_id
        self._rotate_bytes = rotate_bytes
        self._fsync_interval_s = fsync_interval_s
        self._seq = 0
        self._fd = -1
        self._size = 0
        self._dirty = False
        self._blobs: dict[str, None] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        try:
            self._dir.mkdir(parents=True)
            self._open_segment()
        except FileExistsError as error:
            raise JournalError(
                f"recorder id {recorder_id} has a journal already", hint="one recorder id, one process"
            ) from error
        except OSError as error:
            raise JournalError(f"cannot write the journal in {self._dir}: {error}") from error
        if fsync_interval_s > 0:
            threading.Thread(target=self._sync_loop, name="journal-fsync", daemon=True).start()

    def append(self, kind: str, *, rollout_id: str | None = None, attempt: int | None = None, **fields: Any) -> int:
        """Write one record; returns its seq. Raises RecordError (nothing written, go on) or JournalError (broken)."""
        check(kind, fields)
        with self._lock:
            self._refuse_if_broken()
            header = {
                "v": VERSION,
                "recorder_id": self.recorder_id,
                "seq": self._seq,
                "ts": time.time(),
                "kind": kind,
                "run_id": self.run_id,
                "rollout_id": rollout_id,
                "attempt": attempt,
            }
            try:
                line = encode(header | fields)
            except TypeError as error:
                raise RecordError(f"a {kind} record cannot be written as JSON: {error}") from error
            if self._size and self._size + len(line) > self._rotate_bytes:
                self._guard(self._rotate, "start a new segment")
            self._write(line)
            self._seq += 1
            if self._fsync_interval_s <= 0:
                self.sync()
            return self._seq - 1

    def blob(self, data: bytes | str) -> str:
        """Store `data` once and return its hash."""
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        name = blob_hash(raw)
        with self._lock:
            if name in self._blobs:
                return name
            try:
                self.append("blob", hash=name, data=raw.decode("utf-8"))
            except UnicodeDecodeError:
                self.append("blob", hash=name, data=base64.b64encode(raw).decode(), encoding="base64")
            if len(self._blobs) >= _SEEN_BLOBS:
                del self._blobs[next(iter(self._blobs))]
            self._blobs[name] = None
        return name

    def sync(self) -> None:
        """Force what was written to the disk. A failure breaks the writer: the kernel may have dropped the pages."""
        with self._lock:
            self._refuse_if_broken()
            if self._dirty:
                self._guard(lambda: os.fsync(self._fd), "sync")
                self._dirty = False

    def close(self) -> None:
        """Seal the last segment. A broken writer only lets go of its file, for `seal_abandoned` to look at."""
        self._closing.set()
        with self._lock:
            if self._fd < 0:
                return
            if self.broken:
                os.close(self._fd)
                self._fd = -1
                return
            self._guard(self._seal, "seal the segment")
            self.broken = "closed"

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_broken(self) -> None:
        if self.broken:
            raise JournalError(f"the journal of {self.recorder_id} takes no more records: {self.broken}")

    def _break(self, doing: str, error: OSError | str) -> JournalError:
        self.broken = f"could not {doing}: {error}"
        return JournalError(
            f"the journal of {self.recorder_id} {self.broken}",
            hint=f"check the disk under {self._dir}; the run cannot go on",
        )

    def _guard(self, action: Any, doing: str) -> None:
        try:
            action()
        except OSError as error:
            raise self._break(doing, error) from error

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._fd, line)
            failure: OSError | str = f"only {written} of {len(line)} bytes were written"
        except OSError as error:
            written, failure = -1, error
        if written == len(line):
            self._size += written
            self._dirty = True
            return
        try:
            os.ftruncate(self._fd, self._size)  # readers skip a torn line anyway, this only keeps the file tidy
        except OSError:
            failure = f"{failure} (and the torn line could not be cut off)"
        raise self._break("write", failure)

    def _open_segment(self) -> None:
        path = self._dir / segment_name(self._seq)
        new = path.with_name(path.name + NEW)
        fd = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(new, path)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._path, self._size, self._dirty = fd, path, 0, False

    def _rotate(self) -> None:
        self._seal()
        self._open_segment()

    def _seal(self) -> None:
        if self._size:
            os.fsync(self._fd)
            os.rename(self._path, self._path.with_name(self._path.name.removesuffix(OPEN) + SEALED))
        else:
            os.unlink(self._path)
        sync_dir(self._dir)
        os.close(self._fd)
        self._fd = -1

    def _sync_loop(self) -> None:
        while not self._closing.wait(self._fsync_interval_s):
            with self._lock:
                if self.broken or self._fd < 0:
                    return
                fd, dirty = (os.dup(self._fd), True) if self._dirty else (-1, False)
                self._dirty = False
            if not dirty:
                continue
            try:
                os.fsync(fd)  # outside the lock: a slow disk must not hold up `append`
            except OSError as error:
                self._break("sync", error)
                return
            finally:
                os.close(fd)
