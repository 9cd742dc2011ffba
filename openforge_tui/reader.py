"""Asks the store off the event loop, so that no key ever waits for a query. One object an app.

Lists of ended runs are kept, since those do not change; what a run under way says is read anew. Does not know screens.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openforge.store.lists import list_rollouts, list_runs
from openforge.store.snapshot import known_runs
from openforge.store.transcript import Row, Transcript, read_transcript

_MEMORY = "256MB"
_KEPT = 8


class Reader:
    """One store. Every method may be awaited from the event loop; `close` when the app ends."""

    def __init__(self, store_root: Path) -> None:
        self.store_root = store_root
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="store")
        self._run_rows: dict[str, tuple[object, Row]] = {}
        self._rollout_rows: OrderedDict[str, tuple[object, list[Row]]] = OrderedDict()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def work[T](self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """`function` in one of this reader's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **named))

    async def runs(self) -> list[Row]:
        """One row a run, the newest first."""
        return await self.work(self._runs)

    async def rollouts(self, run_id: str) -> list[Row]:
        """One row a rollout."""
        return await self.work(self._rollouts, run_id)

    async def transcript(self, rollout_id: str, attempt: int | None = None) -> Transcript:
        """A rollout with all its turns, without their tokens. Raises UsageError."""
        return await self.work(read_transcript, self.store_root, rollout_id, attempt=attempt)

    def _runs(self) -> list[Row]:
        found = known_runs(self.store_root)
        stamps = {run_id: run_stamp(self.store_root / "runs" / run_id) for run_id in found}
        stale = [run_id for run_id in found if self._run_rows.get(run_id, (None,))[0] != stamps[run_id]]
        for row in list_runs(self.store_root, stale) if stale else ():
            self._run_rows[row["run_id"]] = (stamps[row["run_id"]], row)
        return [self._run_rows[run_id][1] for run_id in reversed(found) if run_id in self._run_rows]

    def _rollouts(self, run_id: str) -> list[Row]:
        stamp = run_stamp(self.store_root / "runs" / run_id)
        kept = self._rollout_rows.get(run_id)
        if kept is None or kept[0] != stamp:
            kept = (stamp, list_rollouts(self.store_root, run_id))
            self._rollout_rows[run_id] = kept
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
