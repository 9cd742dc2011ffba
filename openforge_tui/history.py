"""What was asked before, the newest first. A file of JSON lines that several apps may add to at once.

A line that cannot be read is passed over; a file that cannot be written is an InfraError.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from openforge.errors import InfraError

KEPT = 200
_MOST_LINES = 5 * KEPT


class Past(NamedTuple):
    """One query; `at` in Unix seconds."""

    sql: str
    at: float


class History:
    """Of one store."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, sql: str) -> None:
        """Note it as the newest. Raises InfraError."""
        line = json.dumps({"at": round(time.time(), 3), "sql": sql}) + "\n"
        try:
            with self._locked():
                before = self._path.read_bytes() if self._path.exists() else b""
                with self._path.open("ab") as file:
                    file.write(line.encode() if before[-1:] in (b"", b"\n") else b"\n" + line.encode())
                self._shorten()
        except OSError as error:
            raise InfraError(f"{self._path} cannot be written: {error.strerror}", hint="openforge doctor") from None

    def newest(self) -> list[Past]:
        """The last KEPT distinct queries. Raises InfraError."""
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InfraError(f"{self._path} cannot be read: {error.strerror}", hint="openforge doctor") from None
        found: dict[str, Past] = {}
        for past in filter(None, map(_read, reversed(lines))):
            found.setdefault(past.sql, past)
            if len(found) == KEPT:
                break
        return list(found.values())

    def _shorten(self) -> None:
        """Once in a while, to what is shown."""
        if self._path.read_bytes().count(b"\n") <= _MOST_LINES:
            return
        kept = [json.dumps({"at": past.at, "sql": past.sql}) for past in reversed(self.newest())]
        whole = self._path.with_suffix(".new")
        whole.write_text("\n".join(kept) + "\n")
        os.replace(whole, self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read(line: bytes) -> Past | None:
    try:
        told = json.loads(line)
        return Past(str(told["sql"]), float(told["at"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
