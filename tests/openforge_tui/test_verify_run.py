"""verify against a real vLLM: what was sampled passes, and each fault that would train on wrong tokens is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from openforge.errors import UsageError
from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter
from openforge_tui import verify
from openforge_tui.verify import Sample
from openforge_tui.verify_run import read_samples, run_config, verify_run
from proxy_addons.engines.vllm import Vllm
from proxy_addons.settings import EngineSettings, Sampling
from tests.conftest import DemoRun
from tests.openforge_tui.test_verify import shift_logprobs


def first_sampled(sample: Sample) -> int:
    return list(sample.loss_mask).index(1)


def change_prompt_id(good: Sample) -> Sample:
    """The id right before the first sampled one."""
    at = first_sampled(good) - 1
    ids = list(good.token_ids)
    ids[at] = ids[at] + 1
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


@pytest.mark.policy
@pytest.mark.timeout(1200)
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
    assert sample == Sample("r1.t.react.0", "s1", [1, 2, 3], [0, 1, 1], [None, -0.5, -0.25], frozenset({"w1", "w2"}))
