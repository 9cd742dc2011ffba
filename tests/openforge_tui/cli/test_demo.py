"""The whole thing: real harnesses, a sampled policy, every token accounted for."""

import pytest

from openforge.store.connect import query
from tests.conftest import DemoRun

pytestmark = [pytest.mark.policy, pytest.mark.timeout(1200)]


def test_every_harness_did_multi_turn_work_without_an_error(demo_run: DemoRun) -> None:
    rows = {row["harness"]: row for row in demo_run.answer["harnesses"]}
    assert set(rows) == {"react", "pi", "codex"}
    for row in rows.values():
        assert (row["rollouts"], row["graded"], row["errors"]) == (12, 12, "none")
        assert row["calls"] >= 2 * row["rollouts"], "tools were used and answered"
        assert 0 < row["reward"] < 1, "it knows the tasks, and it was taught to miss as well"


def test_one_sample_a_rollout_where_the_harness_only_appends(demo_run: DemoRun) -> None:
    for row in demo_run.answer["harnesses"]:
        assert (row["samples_a_rollout"], row["breaks"]) == (1.0, "none")


def test_every_sample_is_what_was_sampled(demo_run: DemoRun) -> None:
    proof = demo_run.answer["verify"]
    assert (proof["samples"], proof["failures"]) == (36, 0)
    assert proof["max_diff"] < 1e-3
    assert proof["mean_diff"] < 1e-4


def test_every_train_call_has_ids_logprobs_and_a_weight_version(demo_run: DemoRun) -> None:
    sql = """
        SELECT count(*) AS calls, count(*) FILTER (len(completion_ids) > 0 AND len(completion_ids) = len(logprobs)
            AND len(prompt_ids) > 0 AND weight_version_min IS NOT NULL) AS whole FROM calls WHERE state = 'done'"""
    (row,) = query(demo_run.store_root, sql, runs=[demo_run.run_id])
    assert row["calls"] == row["whole"] > 0


def test_it_says_what_to_type_next(demo_run: DemoRun) -> None:
    assert "next:" in demo_run.narration
    assert f"openforge rollouts {demo_run.run_id}" in demo_run.narration
