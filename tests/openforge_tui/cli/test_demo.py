"""The whole thing: real harnesses, a sampled policy, every token accounted for, every planted fault found.

All tests that ask the served policy stand in this file, since a file's tests share a worker and with it one vLLM and
one demo.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from openforge.store.connect import query
from openforge_tui import verify
from openforge_tui.verify import Sample
from openforge_tui.verify_run import read_samples
from proxy_addons.engines.vllm import Vllm
from proxy_addons.settings import EngineSettings, Sampling
from tests.conftest import DemoRun
from tests.openforge_tui.test_verify import shift_logprobs

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


def first_sampled(sample: Sample) -> int:
    return list(sample.loss_mask).index(1)


def change_prompt_id(good: Sample) -> Sample:
    """The id right before the first sampled one is that one's twin: a policy may well have learned to overlook an id
    that it never saw, but not the beginning of its own answer."""
    at = first_sampled(good) - 1
    ids = list(good.token_ids)
    ids[at] = ids[at + 1]
    return replace(good, token_ids=ids)


def lose_prompt_id(good: Sample) -> Sample:
    """The id three before the first sampled one is gone, and everything after it moves up."""
    at = first_sampled(good) - 3
    keep = [index for index in range(len(good.token_ids)) if index != at]
    return replace(
        good,
        token_ids=[good.token_ids[i] for i in keep],
        loss_mask=[good.loss_mask[i] for i in keep],
        logprobs=[good.logprobs[i] for i in keep],
    )


def change_sampled_id(good: Sample) -> Sample:
    at = first_sampled(good)
    ids = list(good.token_ids)
    ids[at] = ids[at] + 1
    return replace(good, token_ids=ids)


@pytest.mark.parametrize("fault", [change_prompt_id, lose_prompt_id, change_sampled_id, shift_logprobs])
async def test_vllm_finds_each_fault(demo_run: DemoRun, starter_server: str, fault: Callable[[Sample], Sample]) -> None:
    good = read_samples(demo_run.store_root, demo_run.run_id)[:3]
    bad = [replace(fault(sample), sample_id=f"bad {sample.sample_id}") for sample in good]
    engine = Vllm(EngineSettings(url=starter_server, model="policy"), Sampling(), (), 0)
    try:
        report = await verify.verify([*good, *bad], engine.score, verify.tolerance("float32"))
    finally:
        await engine.close()
    assert [row.sample_id for row in report.failures] == [sample.sample_id for sample in bad]
