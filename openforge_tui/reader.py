"""Asks the store off the event loop, so that no key ever waits for a query. One object an app.

A run under way is followed by its new records (store/fold.py); what has ended is asked once, since it does not change.
Does not know screens.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import TYPE_CHECKING, Any

from openforge.errors import InfraError, OpenForgeError, UsageError
from openforge.journal.reader import Place, Tail, read_lines
from openforge.store.fold import KINDS, Row, RunFold
from openforge.store.snapshot import known_runs, live_writers

if TYPE_CHECKING:  # DuckDB is loaded in a thread, when the first screen has been drawn
    from duckdb import DuckDBPyConnection

    from openforge.store.transcript import Transcript

_READ_TOO = ("blob", "egress", "call.refused", "sample.refused")  # of a rollout that is read
_MEMORY = "256MB"
_KEPT = 8  # lists of ended runs


class Followed:
    """A run under way, as far as its journal has been read: its rows, and where each rollout's records stand."""

    def __init__(self, run_dir: Path) -> None:
        self.fold = RunFold(run_dir.name)
        self.live: set[str] = set()
        self._run_dir, self._tail = run_dir, Tail(run_dir, (*KINDS, *_READ_TOO))
        self._lock = Lock()
        self._rollout_rows: list[Row] | None = None
        self._places: dict[str, list[Place]] = {}
        self._blobs: dict[str, Place] = {}
        self._con: DuckDBPyConnection | None = None

    def look(self) -> "Followed":
        """Take in what was written since the last look."""
        with self._lock:
            if self.live != (live := live_writers(self._run_dir)):
                self.live, self._rollout_rows = live, None
            while True:
                for place, record in self._tail.poll_places():
                    self._rollout_rows = None
                    self._take(place, record)
                if not self._tail.more:
                    return self

    def _take(self, place: Place, record: Mapping[str, Any]) -> None:
        self.fold.add(record)
        if record["kind"] == "blob":
            self._blobs[record["hash"]] = place
        if (rollout_id := record["rollout_id"]) is None:
            return
        mine = self._places.setdefault(rollout_id, [])
        mine.append(place)
        for message in record.get("messages") or ():
            if (blob := self._blobs.get(message.get("text_blob"))) is not None and blob not in mine:
                mine.append(blob)

    def rollout_rows(self) -> list[Row]:
        """The same list for as long as nothing has changed."""
        with self._lock:
            if self._rollout_rows is None:
                self._rollout_rows = self.fold.rollout_rows(self.live)
            return self._rollout_rows

    def transcript(self, rollout_id: str) -> "Transcript":
        """One of its rollouts, from its own records alone, however large the journal is. Raises UsageError."""
        from openforge.store.connect import new_connection
        from openforge.store.transcript import read_lines_of

        with self._lock, NamedTemporaryFile(prefix="openforge-", suffix=".jsonl") as file:
            file.write(read_lines(self._run_dir, self._places.get(rollout_id, ())))
            file.flush()
            if self._con is None:
                self._con = new_connection(memory_limit=_MEMORY)
            return read_lines_of(self._con, Path(file.name), [], self.live, rollout_id)


class Reader:
    """One store. Every method may be awaited from the event loop; `close` when the app ends."""

    def __init__(self, store_root: Path) -> None:
        self.store_root = store_root
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="store")
        self._followed: dict[str, Followed] = {}
        self._run_rows: dict[str, tuple[object, Row]] = {}
        self._rollout_rows: OrderedDict[str, tuple[object, list[Row]]] = OrderedDict()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def work[T](self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """`function` in one of this reader's threads. A file that cannot be read is an InfraError."""

        def call() -> T:
            try:
                return function(*args, **named)
            except OSError as error:
                raise InfraError(
                    f"{error.filename or 'the store'}: {error.strerror}", hint="it is tried again"
                ) from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def runs(self) -> list[Row]:
        """One row a run, the newest first (`openforge.store.lists.list_runs`)."""
        return await self.work(self._runs)

    async def rollouts(self, run_id: str) -> list[Row]:
        """One row a rollout (`openforge.store.lists.list_rollouts`); the same list for as long as nothing has changed.
        UsageError when the run is not there."""
        return await self.work(self._rollouts, run_id)

    async def followed(self) -> list[Followed]:
        """The runs under way."""
        return await self.work(lambda: [found for run in known_runs(self.store_root) if (found := self._follow(run))])

    async def transcript(self, rollout_id: str, attempt: int | None = None) -> "Transcript":
        """A rollout with all its turns, without their tokens. Raises UsageError."""

        def read() -> "Transcript":
            from openforge.store.transcript import read_transcript

            followed = self._follow(rollout_id.partition(".")[0]) if attempt is None else None
            if followed is not None:
                return followed.transcript(rollout_id)
            return read_transcript(self.store_root, rollout_id, attempt=attempt)

        return await self.work(read)

    def _follow(self, run_id: str) -> Followed | None:
        """The run, when it is under way."""
        run_dir = self.store_root / "runs" / run_id
        if not live_writers(run_dir):
            self._followed.pop(run_id, None)
            return None
        return self._followed.setdefault(run_id, Followed(run_dir)).look()

    def _runs(self) -> list[Row]:
        found = known_runs(self.store_root)
        if self._run_rows and not self.store_root.is_dir():
            raise InfraError(f"the store {self.store_root} is gone", hint="it is looked for again")
        rows: dict[str, Row | None] = {}
        stale: dict[str, object] = {}
        for run_id in found:
            if (followed := self._follow(run_id)) is not None:
                rows[run_id] = followed.fold.run_row(followed.live)
                continue
            stamp, known = run_stamp(self.store_root / "runs" / run_id), self._run_rows.get(run_id)
            rows[run_id] = None if known is None else known[1]
            if known is None or known[0] != stamp:
                stale[run_id] = stamp
        for told in self._ask_runs(list(stale)) if stale else ():
            self._run_rows[told["run_id"]] = (stale[told["run_id"]], told)
            rows[told["run_id"]] = told
        return [row for run_id in reversed(found) if (row := rows[run_id])]

    def _ask_runs(self, runs: list[str]) -> list[Row]:
        """Their rows; one that cannot be read says so in its own row and hides no other."""
        from openforge.store.lists import RUN_COLUMNS, list_runs

        try:
            return list_runs(self.store_root, runs)
        except OpenForgeError as error:
            if len(runs) > 1:
                return [row for run_id in runs for row in self._ask_runs([run_id])]
            told = {"run_id": runs[0], "state": "unreadable", "policy": error.summary}
            return [dict.fromkeys(RUN_COLUMNS) | told]

    def _rollouts(self, run_id: str) -> list[Row]:
        from openforge.store.lists import list_rollouts

        run_dir = self.store_root / "runs" / run_id
        if not run_dir.is_dir():
            raise UsageError(f"run {run_id} is not in {self.store_root}", hint="was it deleted? openforge runs")
        if (followed := self._follow(run_id)) is not None:
            return followed.rollout_rows()
        stamp = run_stamp(run_dir)
        kept = self._rollout_rows.get(run_id)
        if kept is None or kept[0] != stamp:
            kept = self._rollout_rows[run_id] = (stamp, list_rollouts(self.store_root, run_id))
        self._rollout_rows.move_to_end(run_id)
        while len(self._rollout_rows) > _KEPT:
            self._rollout_rows.popitem(last=False)
        return kept[1]


def run_stamp(run_dir: Path) -> object:
    """Something that is equal for as long as a run's files are the same ones with the same sizes."""
    found = []
    for folder in (run_dir / "journal", run_dir / "parquet"):
        for place, _, names in os.walk(folder):
            for name in names:
                try:
                    about = os.stat(os.path.join(place, name))
                except FileNotFoundError:
                    continue
                found.append((place, name, about.st_size, about.st_mtime_ns))
    return tuple(sorted(found))
