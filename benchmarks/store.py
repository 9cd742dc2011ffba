"""What asking the store costs: 100,000 calls, in segments as a run writes them and in Parquet after compaction.

Prints one line per figure and ends with 5 when one misses its goal. The run is made up, its journal is real. Figures
are the best of three; the peer in the same run is a plain Python loop over the same lines.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.figure import report
from openforge.journal.reader import read_records
from openforge.store.compact import compact
from openforge.store.connect import connect, new_connection
from openforge.store.sql import SafeSql

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "openforge" / "store"))

from synthetic import SyntheticRun  # type: ignore[import-not-found]  # noqa: E402

TURNS = 10
QUERIES = {
    "count": "SELECT count(*) FROM calls",
    "group by": "SELECT break_reason, count(*), avg(duration_s), sum(completion_tokens) FROM calls GROUP BY ALL",
    "one rollout's tokens": "SELECT * FROM tokens WHERE rollout_id = '{rollout}' ORDER BY position",
    "one rollout's prompts": "SELECT call_id, prompt_ids FROM calls WHERE rollout_id = '{rollout}'",
    "success by harness": "SELECT harness, count(*), avg(reward), sum(calls) FROM rollouts GROUP BY ALL",
}
GOALS_S = {
    "segments": dict.fromkeys(QUERIES, 4.0),
    "parquet": {
        "count": 0.3,
        "group by": 0.5,
        "one rollout's tokens": 0.3,
        "one rollout's prompts": 0.5,
        "success by harness": 1.0,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    calls = parser.parse_args().calls
    good = True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run, made_s = timed(lambda: make(root, calls))
        size_mb = sum(path.stat().st_size for path in run.run_dir.rglob("*.jsonl")) / 1e6
        rollout = next(iter(run.truth.rewards))
        print(f"{calls} calls, {size_mb:.0f} MB of segments, written in {made_s:.1f} s")
        _, loop_s = timed(lambda: sum(1 for _ in read_records(run.run_dir, {"call.close"})))
        good &= ask(root, "segments", rollout, loop_s)
        done, compact_s = timed(lambda: compact(run.run_dir))
        parquet_mb = sum(path.stat().st_size for path in run.run_dir.rglob("*.parquet")) / 1e6
        good &= report("compact", done.records / compact_s / 1000, "thousand records/s", 5, at_least=True)
        good &= report("parquet size", parquet_mb / size_mb, "of segments", 0.5)
        good &= ask(root, "parquet", rollout, loop_s)
        _, empty_s = best(lambda: new_connection())
        good &= report("connect", empty_s, "s", 0.3)
        _, jail_s = best(lambda: SafeSql(root).query("SELECT count(*) FROM calls"))
        good &= report("a person's query, process and all", jail_s, "s", 1.5)
    return 0 if good else 5


def make(root: Path, calls: int) -> SyntheticRun:
    run = SyntheticRun(root)
    for number in range(calls // TURNS):
        run.rollout(harness=("react", "pi", "codex")[number % 3], sample=number, turns=TURNS, reward=number % 2)
    run.end()
    return run


def ask(root: Path, where: str, rollout: str, loop_s: float) -> bool:
    con = connect(root)
    good = True
    for name, sql in QUERIES.items():
        _, seconds = best(lambda sql=sql: run_query(con, sql.format(rollout=rollout)))
        good &= report(f"{where}: {name}", seconds, f"s, {loop_s / seconds:.1f} x a Python loop", GOALS_S[where][name])
    con.close()
    return good


def run_query(con: duckdb.DuckDBPyConnection, sql: str) -> Any:
    return con.sql(sql).to_arrow_table()


def timed[T](work: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def best[T](work: Callable[[], T]) -> tuple[T, float]:
    return min((timed(work) for _ in range(3)), key=lambda pair: pair[1])


if __name__ == "__main__":
    sys.exit(main())
