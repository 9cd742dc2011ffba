"""One query under way, for a screen that must not wait: asked or written in a thread, watched and stopped from another.

Two limits hold for what is kept to be looked at, rows and bytes; an answer says when it was cut. A file has all rows.
"""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from openforge.store.rows import write_query
from openforge.store.sql import SafeSql

MAX_ROWS = 1_000_000
MAX_BYTES = 128 << 20
TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Answer:
    """What came. `cut`: there was more; `by_size`: because the rows were large, not many."""

    table: pa.Table
    cut: bool
    by_size: bool
    seconds: float


class Question:
    """Of one store, or of one `run` in it; asked once. `rows` counts what has come so far."""

    def __init__(self, store_root: Path, sql: str, run: str | None = None) -> None:
        self.sql, self.run = sql, run
        self.rows = 0
        self.stopping = False
        self._asked = SafeSql(store_root, runs=None if run is None else [run])
        self._began = time.monotonic()
        self._ended = threading.Event()

    @property
    def seconds(self) -> float:
        """Since it was asked."""
        return time.monotonic() - self._began

    def ask(self) -> Answer:
        """The rows, as many as may be kept. Raises OpenForgeError, also when it was stopped."""
        batches, size, cut, by_size = [], 0, False, False
        try:
            with self._asked.stream(self.sql, TIMEOUT_S, limit=MAX_ROWS + 1) as reader:
                for batch in reader:
                    if by_size:
                        cut = True
                        break
                    batches.append(batch)
                    self.rows += batch.num_rows
                    size += batch.nbytes
                    by_size = size > MAX_BYTES
                table = pa.Table.from_batches(batches, reader.schema)
        finally:
            self._ended.set()
        return Answer(table.slice(0, MAX_ROWS), cut or table.num_rows > MAX_ROWS, cut, self.seconds)

    def write(self, dest: Path) -> int:
        """All rows to a file; returns how many. Raises OpenForgeError."""
        try:
            return write_query(self._asked, self.sql, dest, timeout_s=TIMEOUT_S, told=self._count)
        finally:
            self._ended.set()

    def _count(self, rows: int) -> None:
        self.rows = rows

    def stop(self) -> None:
        """End it; whoever waits for it is told by an OpenForgeError. Returns at once."""
        self.stopping = True
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        # Again and again: the query's process may be about to start.
        self._asked.cancel()
        while not self._ended.wait(0.05):
            self._asked.cancel()
