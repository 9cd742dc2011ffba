"""What a recorder in a cluster writes, as files of the run on this machine.

A segment here grows as the one there does, under the same name and with the same lock, so that readers, the compactor
and whoever seals what was abandoned find what they would find of a recorder on this machine. What comes is not
trusted: a name decides only which of a few known places it is.
"""

import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from openforge.errors import InfraError
from openforge.journal.segments import NEW, OPEN, SEALED, journal_dir, segment_name, sync_dir

_SEGMENT = re.compile(r"journal/(recorder-[A-Za-z0-9_-]{1,64})/(\d{12})")
_VOCABULARY = re.compile(r"vocab/([0-9a-f]{32})")
_HEAD_BYTES, _FRAME_BYTES = 1 << 16, 64 << 20


class CopyError(InfraError):
    """What came is not what a recorder sends."""


class _Copied:
    """One file: how much of it is here, and what it is called once it is whole."""

    def __init__(self, path: Path, fd: int, final: Path | None) -> None:
        self.path, self.fd, self.final = path, fd, final
        self.size, self.dirty = 0, False

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]
        self.size += len(data)
        self.dirty = True

    def finish(self) -> None:
        assert self.final is not None
        os.fsync(self.fd)
        self.path.rename(self.final)
        sync_dir(self.final.parent)
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class RecorderCopy:
    """`on_ready` has what the recorder said and the file `ca_name` of its authorities, once both are here; `on_answer`
    each answer's number, status and body. `broken` says why nothing more is written."""

    def __init__(
        self,
        run_dir: Path,
        log: Path,
        ca_name: str,
        on_ready: Callable[[dict[str, Any], Path], None],
        on_answer: Callable[[int, int, bytes], None],
    ) -> None:
        self.broken = ""
        self._run_dir, self._log = run_dir, log
        self._on_ready, self._on_answer = on_ready, on_answer
        self._files: dict[str, _Copied] = {}
        self._small = {"ca": bytearray(), "ready": bytearray()}
        self._done: set[str] = set()
        self._ca = run_dir / ca_name
        self._buffer = bytearray()

    def have(self) -> dict[str, int]:
        """How much of each file is here; a new stream begins after that."""
        self._buffer.clear()
        return {key: file.size for key, file in self._files.items()} | {
            key: len(data) for key, data in self._small.items()
        }

    def take(self, data: bytes) -> None:
        """The next bytes of the stream."""
        if self.broken:
            return
        self._buffer += data
        try:
            while frame := self._next():
                self._frame(*frame)
        except OSError as error:
            self.broken = f"what the recorder wrote cannot be kept here: {error}"
        except (CopyError, ValueError, KeyError, TypeError) as error:
            self.broken = f"the recorder's pod sent what no recorder sends: {error}"

    def _next(self) -> tuple[dict[str, Any], bytes] | None:
        end = self._buffer.find(b"\n", 0, _HEAD_BYTES)
        if end < 0:
            if len(self._buffer) >= _HEAD_BYTES:
                raise CopyError("a frame without a head")
            return None
        head = orjson.loads(self._buffer[:end])
        if not 0 <= int(head["size"]) <= _FRAME_BYTES:
            raise CopyError(f"a frame of {head['size']} bytes")
        whole = end + 1 + int(head["size"])
        if len(self._buffer) < whole:
            return None
        data = bytes(self._buffer[end + 1 : whole])
        del self._buffer[:whole]
        return head, data

    def _frame(self, head: dict[str, Any], data: bytes) -> None:
        if "answer" in head:
            self._on_answer(int(head["answer"]), int(head["status"]), data)
        elif key := head.get("key"):
            if key in self._done:
                return
            at = int(head["at"])
            if key in self._small:
                kept = self._small[key]
                if at != len(kept):
                    raise CopyError(f"{key} goes on at {at}, and {len(kept)} bytes are here")
                kept += data
            else:
                file = self._files.get(key) or self._begin(key)
                if at != file.size:
                    raise CopyError(f"{key} goes on at {at}, and {file.size} bytes are here")
                file.write(data)
            if head.get("whole"):
                self._done.add(key)
                self._finish(key)

    def _begin(self, key: str) -> _Copied:
        if key == "log":
            self._log.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            file = _Copied(self._log, fd, None)
        elif match := _SEGMENT.fullmatch(key):
            path = journal_dir(self._run_dir) / match[1] / segment_name(int(match[2]))
            new = path.with_name(path.name + NEW)
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            new.rename(path)
            file = _Copied(path, fd, path.with_name(path.name.removesuffix(OPEN) + SEALED))
        elif match := _VOCABULARY.fullmatch(key):
            final = self._run_dir.parent.parent / "vocab" / f"{match[1]}.jsonl"
            final.parent.mkdir(parents=True, exist_ok=True)
            scratch = final.with_suffix(f".{os.getpid()}.{id(self)}.tmp")
            fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            file = _Copied(scratch, fd, final)
        else:
            raise CopyError(f"no file is called {key[:80]!r}")
        self._files[key] = file
        return file

    def _finish(self, key: str) -> None:
        if key == "ca":
            self._ca.write_bytes(self._small[key])
        elif key == "ready":
            self._on_ready(orjson.loads(self._small[key]), self._ca)
        else:
            self._files[key].finish()

    def sync(self) -> None:
        """Force what came to the disk. From a thread; a file may be closed meanwhile."""
        for file in list(self._files.values()):
            if file.dirty and file.fd >= 0:
                file.dirty = False
                try:
                    os.fsync(file.fd)
                except OSError as error:
                    if file.fd >= 0:  # else it was finished, and synced, meanwhile
                        self.broken = f"what the recorder wrote cannot be kept here: {error}"

    def close(self) -> None:
        """Let go of the files; a segment that is not whole is left as one whose writer died."""
        for file in self._files.values():
            file.close()
            if file.path.suffix == ".tmp":
                file.path.unlink(missing_ok=True)
