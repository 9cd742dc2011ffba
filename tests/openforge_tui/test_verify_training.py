"""Samples of a policy that learned meanwhile, sampled for real by transformers from three sets of weights."""

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.policy_server import model_hash
from openforge.config import Config
from openforge.errors import OpenForgeError, UsageError
from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter
from openforge_tui.verify import Report, Sample
from openforge_tui.verify_run import verify_run
from openforge_tui.verify_training import saved_weights, verify_training
from tests.openforge_tui.conftest import Trained
from tests.openforge_tui.test_verify import shift_logprobs


async def check(trained: Trained, *samples: Sample, **policy: object) -> Report:
    config = Config.model_validate({"policy": policy})
    return await verify_training(samples, trained.weights, config, lambda text: None)


async def test_each_token_is_scored_by_the_weights_that_sampled_it(trained: Trained) -> None:
    report = await check(trained, *trained.samples.values())
    assert report.failures == []
    assert report.max_diff < 1e-5
    assert [row.versions for row in report.rows] == [("0",), ("2",), ("0", "2"), ("2", "10")]
    assert report.summary().startswith(
        "verify: 4 samples, 41 sampled tokens from 3 weight versions, 2 samples with two or more, largest difference"
    )
    assert report.unverified() == ""


def change_id(at: int) -> Callable[[Sample], Sample]:
    return lambda good: replace(
        good, token_ids=[*good.token_ids[:at], good.token_ids[at] ^ 1, *good.token_ids[at + 1 :]]
    )


def stamp(*spans: tuple[int, str]) -> Callable[[Sample], Sample]:
    return lambda good: replace(good, spans=spans)


FAULTS = {
    "a changed prompt id": change_id(17),
    "a changed sampled id": change_id(22),
    "a changed id of the second weights": change_id(27),
    "shifted logprobs": shift_logprobs,
    "all stamped with the first weights": stamp((20, "0")),
    "all stamped with the second weights": stamp((20, "2")),
    "a span stamped with other weights": stamp((20, "0"), (25, "10")),
    "stamps the wrong way round": stamp((20, "2"), (25, "0")),
    "the second weights begin one too early": stamp((20, "0"), (24, "2")),
    "the second weights begin one too late": stamp((20, "0"), (26, "2")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_each_fault_fails_its_row_alone(trained: Trained, fault: Callable[[Sample], Sample]) -> None:
    mixed = trained.samples["0+2"]
    bad = replace(fault(mixed), sample_id="bad")
    report = await check(trained, *trained.samples.values(), bad)
    assert [row.sample_id for row in report.failures] == ["bad"]
    assert "difference" in report.failures[0].problem


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (stamp(), "11 sampled tokens do not say which weights"),
        (stamp((23, "0")), "3 sampled tokens do not say which weights"),
        (lambda good: replace(good, token_ids=[*good.token_ids[:22], 1 << 20, *good.token_ids[23:]]), "has no id"),
        (lambda good: replace(good, logprobs=[None] * len(good.logprobs)), "have no logprob"),
    ],
)
async def test_a_malformed_row_is_named(trained: Trained, fault: Callable[[Sample], Sample], problem: str) -> None:
    report = await check(trained, trained.samples["2"], fault(trained.samples["0+2"]))
    assert [problem in row.problem for row in report.rows] == [False, True]
    assert len(report.failures) == 1


async def test_samples_of_weights_that_were_not_saved_are_counted_not_failed(trained: Trained) -> None:
    good = trained.samples["2"]
    partly, wholly = replace(good, spans=[(20, "2"), (24, "9")]), replace(good, spans=[(20, "10.1")])
    report = await check(trained, good, partly, wholly)
    assert [row.sample_id for row in report.rows] == [good.sample_id]
    assert report.failures == []
    assert report.left == 2
    assert report.unverified() == (
        "not verifiable: 2 samples of weights 9, 10.1, not saved; [trainer] save_every = 1 keeps all"
    )


async def test_many_unsaved_weights_are_cut_short(trained: Trained) -> None:
    good = trained.samples["2"]
    others = [replace(good, spans=[(20, str(step))]) for step in range(100, 120)]
    assert "weights 100, 101, 102, 103, 104, 105, 106, 107 and 12 more, not" in (
        (await check(trained, good, *others)).unverified()
    )


async def test_nothing_that_can_be_verified_is_an_error(trained: Trained) -> None:
    with pytest.raises(UsageError, match="1 sample of weights 3, not saved"):
        await check(trained, replace(trained.samples["2"], spans=[(20, "3")]))


async def test_the_temperature_is_that_of_the_run(trained: Trained) -> None:
    report = await check(trained, trained.samples["0"], sampling={"temperature": 0.5})
    assert len(report.failures) == 1


async def test_another_dtype_is_weak(trained: Trained) -> None:
    report = await check(trained, *trained.samples.values(), dtype="bfloat16")
    assert report.failures == []
    assert "weak" in report.summary()


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
async def test_logprobs_of_a_cut_distribution_are_refused(trained: Trained, cut: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="top_p or top_k"):
        await check(trained, trained.samples["0"], sampling=cut)


async def test_it_can_be_cancelled_between_rows(trained: Trained) -> None:
    work = asyncio.create_task(check(trained, *[trained.samples["0"]] * 1000))
    await asyncio.sleep(0.05)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


def save(store_root: Path, step: int, version: str, weights: Path) -> Path:
    """A whole checkpoint, as the trainer leaves it."""
    folder = store_root / "runs" / "r1" / "trainer" / f"global_step_{step}"
    shutil.copytree(weights, folder / "actor" / "huggingface")
    (folder / "openforge.json").write_text(json.dumps({"step": step, "weight_version": version}))
    return folder


def begin(folder: Path, weights: Path) -> None:
    """What a training run notes of the weights that it begins with."""
    (folder / "first_weights.json").write_text(json.dumps({"folder": str(weights), "hash": model_hash(weights)}))


def write_run(store_root: Path, trained: Trained, samples: Sequence[Sample], learned: Sequence[str] = ()) -> None:
    """A training run as the store keeps it, with weights 2 as its only checkpoint."""
    save(store_root, 2, "2", trained.weights["2"])
    run_dir = store_root / "runs" / "r1"
    (run_dir / "trainer" / "plan.jsonl").write_text("")
    begin(run_dir / "trainer", trained.weights["0"])
    writer = JournalWriter(run_dir, RecorderId("test-1"), RunId("r1"))
    config = {"version": 1, "policy": {"model": str(trained.weights["0"])}}
    told = {"tasks": ["t"], "harnesses": ["react"], "samples": 1, "policy": {}, "version": "0"}
    writer.append("run.start", config=config, **told)
    writer.append("train.start", from_step=0, incarnation=0)
    for sample in samples:
        at = {"rollout_id": sample.rollout_id, "attempt": 0}
        writer.append("rollout.state", **at, state="queued", task="t", harness="react")
        writer.append(
            "sample",
            **at,
            sample_id=sample.sample_id,
            call_ids=["c1"],
            token_ids=sample.token_ids,
            loss_mask=sample.loss_mask,
            logprobs=sample.logprobs,
            versions=[list(span) for span in sample.spans],
            is_main=True,
            weight=1.0,
            reason="end",
        )
    if learned:
        step = {"step": 1, "incarnation": 0, "weight_version": "1", "samples": len(learned)}
        writer.append("train.step", rollouts=list(learned), **step)
    writer.close()


async def test_a_training_run_is_verified_against_its_checkpoints(store_root: Path, trained: Trained) -> None:
    write_run(store_root, trained, list(trained.samples.values()))
    said: list[str] = []
    report = await verify_run(store_root, "r1", said.append)
    assert report.failures == []
    assert [row.versions for row in report.rows] == [("0",), ("2",), ("0", "2")]
    assert report.left == 1
    assert report.unsaved == ("10",)
    assert said == ["scoring 2 samples against weights 0 …", "scoring 2 samples against weights 2 …"]


async def test_only_what_was_trained_on_when_asked(store_root: Path, trained: Trained) -> None:
    chosen = trained.samples["0+2"]
    write_run(store_root, trained, list(trained.samples.values()), [chosen.rollout_id])
    report = await verify_run(store_root, "r1", trained=True)
    assert [row.rollout_id for row in report.rows] == [chosen.rollout_id]


async def test_a_run_that_trained_on_nothing_says_so(store_root: Path, trained: Trained) -> None:
    write_run(store_root, trained, list(trained.samples.values()))
    with pytest.raises(UsageError, match="r1 trained on no samples"):
        await verify_run(store_root, "r1", trained=True)


async def test_weights_of_another_start_of_the_trainer_are_not_taken(store_root: Path, trained: Trained) -> None:
    folder = save(store_root, 2, "2.1", trained.weights["2"])
    begin(folder.parent, trained.weights["0"])
    weights = saved_weights(folder.parent, print)
    assert weights == {"0": trained.weights["0"], "2.1": folder / "actor" / "huggingface"}


@pytest.mark.parametrize("missing", ["openforge.json", "actor/huggingface/config.json"])
def test_a_checkpoint_that_is_not_whole_is_none(store_root: Path, trained: Trained, missing: str) -> None:
    folder = save(store_root, 2, "2", trained.weights["2"])
    (folder / missing).unlink()
    begin(folder.parent, trained.weights["0"])
    assert set(saved_weights(folder.parent, print)) == {"0"}


def test_first_weights_that_were_made_anew_are_not_those_that_sampled(store_root: Path, trained: Trained) -> None:
    folder = save(store_root, 2, "2", trained.weights["2"])
    first = store_root / "starter"
    shutil.copytree(trained.weights["0"], first)
    begin(folder.parent, first)
    assert set(saved_weights(folder.parent, print)) == {"0", "2"}
    shutil.copyfile(trained.weights["10"] / "model.safetensors", first / "model.safetensors")
    said: list[str] = []
    assert set(saved_weights(folder.parent, said.append)) == {"2"}
    assert "starter, and they are not there any more" in said[0]


async def test_weights_that_cannot_be_read_are_an_error(store_root: Path, trained: Trained) -> None:
    write_run(store_root, trained, [trained.samples["2"]])
    (path,) = (store_root / "runs" / "r1").rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(OpenForgeError, match="cannot be loaded"):
        await verify_run(store_root, "r1")
