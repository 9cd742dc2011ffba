"""The demo's questions, on a run written by hand."""

from pathlib import Path

import pytest

from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter
from openforge.store.sql import SafeSql
from openforge_tui import demo


@pytest.fixture
def run_id(store_root: Path) -> str:
    """One graded rollout with two calls, one that met an error of ours first and then its own limit."""
    writer = JournalWriter(store_root / "runs" / "r1", RecorderId("test-1"), RunId("r1"))

    def state(name: str, attempt: int, state: str, error_class: str | None = None) -> None:
        writer.append(
            "rollout.state", rollout_id=name, attempt=attempt, state=state, harness="react", error_class=error_class
        )

    def call(name: str, attempt: int, call_id: str, parent: str | None, reason: str) -> None:
        writer.append(
            "call.close",
            rollout_id=name,
            attempt=attempt,
            call_id=call_id,
            dialect="chat",
            mode="train",
            stream=False,
            status=200,
            parent_call_id=parent,
            break_reason=reason,
            input_ids=[1, 2],
            prompt_len=2 if parent is None else 6,
            completion_ids=[3, 4],
            logprobs=[-0.5, -1.5],
            weight_version_min="w",
            weight_version_max="w",
        )

    good, bad = "r1.t.react.0", "r1.t.react.1"
    writer.append("run.start", config={}, tasks=["t"], harnesses=["react"], samples=2, policy={}, version="0")
    for name in (good, bad):
        state(name, 0, "queued")
        state(name, 0, "running")
    call(good, 0, "c1", None, "root")
    call(good, 0, "c2", "c1", "append")
    writer.append("grade", rollout_id=good, attempt=0, reward=1.0, details={}, duration_s=0.1)
    state(good, 0, "done")
    state(bad, 0, "error", "sandbox")
    state(bad, 1, "queued")
    call(bad, 1, "c3", None, "fork:no-match")
    writer.append("grade", rollout_id=bad, attempt=1, reward=0.0, details={}, duration_s=0.1)
    state(bad, 1, "failed", "limit")
    writer.close()
    return "r1"


def test_one_row_a_harness_with_breaks_failures_and_errors(store_root: Path, run_id: str) -> None:
    (row,) = demo.by_harness(store_root, run_id)
    assert (row["harness"], row["rollouts"], row["graded"], row["reward"], row["calls"]) == ("react", 2, 2, 0.5, 3)
    assert (row["prompt_tokens"], row["sampled_tokens"]) == (10, 6)
    assert (row["breaks"], row["failed"], row["errors"]) == ("fork:no-match 1", "limit 1", "sandbox 1")


def test_the_printed_question_gives_the_printed_answer(store_root: Path, run_id: str) -> None:
    (row,) = demo.tokens(store_root, run_id)
    assert (row["sampled"], row["mean_logprob"], round(row["its_probability"], 5)) == (6, -1.0, 0.22313)
    assert SafeSql(store_root).query(demo.tokens_sql(run_id)).to_pylist() == [row]
