"""What of a stored run can be verified, and how the rest says so (against a real vLLM: cli/test_demo.py)."""

from pathlib import Path

import pytest

from openforge.errors import CheckError, UsageError
from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter
from openforge.store.compact import compact
from openforge_tui.verify import Sample
from openforge_tui.verify_run import read_samples, run_config, verify_run


def journal(store_root: Path, **config: object) -> JournalWriter:
    writer = JournalWriter(store_root / "runs" / "r1", RecorderId("test-1"), RunId("r1"))
    writer.append(
        "run.start",
        config={"version": 1, **config},
        tasks=["t"],
        harnesses=["react"],
        samples=1,
        policy={},
        version="0",
    )
    return writer


async def test_a_recorded_run_has_nothing_to_verify(store_root: Path) -> None:
    journal(store_root, policy={"engine": "openai", "base_url": "http://x"}, run={"mode": "record"}).close()
    with pytest.raises(UsageError, match="recorded from a provider"):
        await verify_run(store_root, "r1")


async def test_a_run_without_samples_says_so(store_root: Path) -> None:
    journal(store_root).close()
    with pytest.raises(UsageError, match="no samples"):
        await verify_run(store_root, "r1")


def test_a_run_of_another_version_is_named(store_root: Path) -> None:
    journal(store_root, policy={"shape": "round"}).close()
    with pytest.raises(UsageError, match=r"policy\.shape"):
        run_config(store_root, "r1")


def test_samples_come_with_their_versions(store_root: Path) -> None:
    writer = journal(store_root)
    writer.append("rollout.state", rollout_id="r1.t.react.0", attempt=0, state="queued", task="t", harness="react")
    writer.append(
        "sample",
        rollout_id="r1.t.react.0",
        attempt=0,
        sample_id="s1",
        call_ids=["c1"],
        token_ids=[1, 2, 3],
        loss_mask=[0, 1, 1],
        logprobs=[None, -0.5, -0.25],
        versions=[[1, "w1"], [2, "w2"]],
        is_main=True,
        weight=1.0,
        reason="end",
    )
    writer.close()
    (sample,) = read_samples(store_root, "r1")
    assert sample == Sample("r1.t.react.0", "s1", [1, 2, 3], [0, 1, 1], [None, -0.5, -0.25], [(1, "w1"), (2, "w2")])


@pytest.mark.parametrize("pattern", ["*.jsonl", "*.parquet"])
async def test_a_file_that_was_changed_after_compaction_does_not_pass(store_root: Path, pattern: str) -> None:
    journal(store_root).close()
    run_dir = store_root / "runs" / "r1"
    compact(run_dir)
    with pytest.raises(UsageError, match="no samples"):  # as long as it is whole
        await verify_run(store_root, "r1")
    (path,) = run_dir.rglob(pattern)
    path.write_bytes(path.read_bytes().replace(b"react", b"REACT"))
    with pytest.raises(CheckError, match=path.name):
        await verify_run(store_root, "r1")
    path.unlink()
    with pytest.raises(CheckError, match=path.name):
        await verify_run(store_root, "r1")
