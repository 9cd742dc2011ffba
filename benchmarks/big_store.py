"""A made-up store of a million calls: one run is written and compacted for real, the others are its copies."""

import shutil
import sys
from pathlib import Path

import duckdb

from openforge.store.compact import compact

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "openforge" / "store"))

from synthetic import SyntheticRun  # type: ignore[import-not-found]  # noqa: E402

TURNS = 10
LONG = 300
FIRST = "r0000000aaa"


def make_store(root: Path, calls: int, runs: int) -> str:
    """`calls` calls in `runs` runs of equal size; returns the id of a rollout of 300 turns in the newest one."""
    (root / "runs").mkdir(parents=True, exist_ok=True)
    run = SyntheticRun(root, FIRST)
    long = run.rollout(task="long", turns=LONG, added=200, sampled=60)
    for number in range((calls // runs - LONG) // TURNS):
        run.rollout(
            task=f"task-{number % 40}",
            harness=("react", "pi", "codex")[number % 3],
            sample=number,
            turns=TURNS,
            reward=(number * 7919 % 100) / 100,
            added=12,
            sampled=8,
        )
    run.end()
    compact(run.run_dir)
    names = [f"r0000000{number:03d}".replace("i", "j") for number in range(1, runs)]
    for name in names:
        _copy(run.run_dir, root / "runs" / name, FIRST, name)
    return str(long).replace(FIRST, max([*names, FIRST]))


def _copy(source: Path, dest: Path, old: str, new: str) -> None:
    (dest / "parquet").mkdir(parents=True)
    shutil.copytree(source / "journal", dest / "journal", copy_function=lambda _from, to: Path(to).touch())
    shutil.copy(source / "parquet" / "manifest.json", dest / "parquet" / "manifest.json")
    with duckdb.connect() as con:
        for file in (source / "parquet").rglob("*.parquet"):
            to = dest / "parquet" / file.relative_to(source / "parquet")
            to.parent.mkdir(parents=True, exist_ok=True)
            con.execute(
                f"""COPY (SELECT * REPLACE ('{new}' AS run_id, replace(rollout_id, '{old}', '{new}') AS rollout_id)
                FROM read_parquet('{file}')) TO '{to}' (FORMAT parquet, COMPRESSION zstd)"""
            )
