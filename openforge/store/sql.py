"""SQL from a person, safely: it only reads the views, stays within its memory and its time, and can be stopped.

Each query runs in a process of its own (jail.py), so that stopping it is killing it. Knows neither the views nor how
rows are shown.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

import openforge
from openforge.config.models import size_bytes
from openforge.errors import InfraError, OpenForgeError, TimeLimitError, UsageError

_ERRORS: dict[str, type[OpenForgeError]] = {"UsageError": UsageError, "InfraError": InfraError}
_SPILL = "8GiB"


class SafeSql:
    """Asks one store. One query at a time per object; `cancel` may be called from any thread."""

    def __init__(self, store_root: Path, *, runs: Sequence[str] | None = None) -> None:
        self._store_root = store_root
        self._runs = list(runs) if runs is not None else None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = ""

    def query(self, sql: str, timeout_s: float = 60, memory: str = "2Gi", *, limit: int | None = None) -> pa.Table:
        """All rows (at most `limit`). Raises UsageError, TimeLimitError, InfraError; KeyboardInterrupt stops it too."""
        with self.stream(sql, timeout_s, memory, limit=limit) as reader:
            return reader.read_all()

    @contextmanager
    def stream(
        self, sql: str, timeout_s: float = 60, memory: str = "2Gi", *, limit: int | None = None
    ) -> Iterator[pa.RecordBatchReader]:
        """The rows as they come, in bounded memory; the query ends with the block."""
        try:
            memory_bytes = size_bytes(memory)
        except ValueError as error:
            raise UsageError(f"memory {memory!r}: {error}") from None
        with tempfile.TemporaryDirectory(prefix="openforge-sql-") as spill_dir:
            request = {
                "store_root": str(self._store_root.absolute()),
                "runs": self._runs,
                "sql": sql,
                "limit": limit,
                "timeout_s": timeout_s,
                "memory": f"{memory_bytes / (1 << 20):.0f}MiB",
                "memory_bytes": memory_bytes,
                "spill_dir": spill_dir,
                "spill": _SPILL,
            }
            with self._start(request, spill_dir) as process, _Deadline(self, timeout_s):
                try:
                    assert process.stdout is not None
                    came = pa.ipc.open_stream(process.stdout)
                    batches = self._to_the_end(came, process, timeout_s)
                    yield pa.RecordBatchReader.from_batches(came.schema, batches)
                except BrokenPipeError:  # not ours: whoever prints the rows lost its reader
                    raise
                except (pa.ArrowInvalid, OSError):  # the stream broke off: the query failed or was stopped
                    raise self._failure(process, timeout_s) from None
                finally:
                    process.kill()

    def _to_the_end(
        self, came: pa.RecordBatchReader, process: subprocess.Popen[bytes], timeout_s: float
    ) -> Iterator[pa.RecordBatch]:
        """Every batch; then an error unless the query came to its end: a stream may break off between two batches."""
        yield from came
        if process.wait() != 0:
            raise self._failure(process, timeout_s)

    def cancel(self) -> None:
        """Stop the running query; whoever waits for it gets an OpenForgeError."""
        self._stop("the query was stopped")

    def _stop(self, why: str) -> None:
        if (process := self._process) is not None:
            self._stopped = why
            process.kill()

    @contextmanager
    def _start(self, request: dict[str, Any], home: str) -> Iterator[subprocess.Popen[bytes]]:
        # Its own session: Ctrl-C reaches only this process, which then kills it. No variables, hence no secrets.
        package_root = Path(openforge.__file__).parents[1]
        env = {"PATH": os.defpath, "HOME": home, "PYTHONPATH": str(package_root), "LANG": "C.UTF-8"}
        argv = [sys.executable, "-P", "-m", "openforge.store.jail"]
        with subprocess.Popen(
            argv,
            env=env,
            cwd=home,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            self._process, self._stopped = process, ""
            try:
                assert process.stdin is not None
                with suppress(BrokenPipeError):  # it was stopped as soon as it was started, which is told below
                    process.stdin.write(json.dumps(request).encode())
                    process.stdin.close()
                yield process
            finally:
                self._process = None
                process.kill()

    def _failure(self, process: subprocess.Popen[bytes], timeout_s: float) -> OpenForgeError:
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip()
        code = process.wait()
        if self._stopped == "time":
            return TimeLimitError(
                f"the query took longer than {timeout_s:g} s",
                hint="narrow it (--run, where rollout_id = …) or raise --timeout",
            )
        if self._stopped:
            return OpenForgeError(self._stopped)
        try:
            told = json.loads(said.splitlines()[-1])
            return _ERRORS.get(told["kind"], OpenForgeError)(told["summary"], hint=told["hint"])
        except (ValueError, LookupError, TypeError):
            last = said.splitlines()[-1] if said else ""
            hint = (
                "openforge doctor" if "Error" in last and "Memory" not in last else "was it out of memory? select less"
            )
            return InfraError(f"the query's process ended with code {code} {last}".strip(), hint=hint)


class _Deadline:
    """Stops the query of `owner` when the time is up."""

    def __init__(self, owner: SafeSql, timeout_s: float) -> None:
        self._timer = threading.Timer(timeout_s, owner._stop, ["time"])
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
