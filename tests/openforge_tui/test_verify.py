"""What verify lets pass and what it finds, with a scorer that depends on every id before."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from openforge.errors import CheckError, InfraError
from openforge_tui import verify
from openforge_tui.verify import Sample


def logprob(prefix: Sequence[int], token: int) -> float:
    """As good as random, and another number for any other prefix or token."""
    return -1.0 - (hash((tuple(prefix), token)) % 10_007) / 5_000


async def score(ids: Sequence[int]) -> list[float | None]:
    await asyncio.sleep(0)
    return [None if index == 0 else logprob(ids[:index], ids[index]) for index in range(len(ids))]


def sample(name: str = "s0", noise: float = 0.0) -> Sample:
    """Prompt of six, four sampled, two more given, three sampled."""
    ids = [11, 12, 13, 14, 15, 16, 21, 22, 23, 24, 17, 18, 31, 32, 33]
    mask = [0] * 6 + [1] * 4 + [0] * 2 + [1] * 3
    logprobs = [logprob(ids[:i], ids[i]) + noise if flag else None for i, flag in enumerate(mask)]
    return Sample("r1.t.react.0", name, ids, mask, logprobs, [(6, "w1")])


async def check(*samples: Sample, dtype: str = "float32") -> verify.Report:
    return await verify.verify(samples, score, verify.tolerance(dtype))


def change_prompt_id(good: Sample) -> Sample:
    return replace(good, token_ids=[11, 12, 99, *good.token_ids[3:]])


def drop_prompt_id(good: Sample) -> Sample:
    cut = slice(1, None)
    return replace(good, token_ids=good.token_ids[cut], loss_mask=good.loss_mask[cut], logprobs=good.logprobs[cut])


def change_sampled_id(good: Sample) -> Sample:
    return replace(good, token_ids=[*good.token_ids[:8], 99, *good.token_ids[9:]])


def shift_logprobs(good: Sample) -> Sample:
    order = [i for i, flag in enumerate(good.loss_mask) if flag]
    shifted = dict(zip(order, [good.logprobs[i] for i in order[1:] + order[:1]], strict=True))
    return replace(good, logprobs=[shifted.get(i) for i in range(len(good.token_ids))])


FAULTS = [change_prompt_id, drop_prompt_id, change_sampled_id, shift_logprobs]


async def test_what_was_sampled_passes() -> None:
    report = await check(sample("a"), sample("b", noise=1e-5))
    assert report.failures == []
    assert report.sampled == 14
    assert report.max_diff == pytest.approx(1e-5)
    assert report.mean_diff == pytest.approx(5e-6)
    assert "every sample passes" in report.summary()


def test_each_sampled_token_has_the_version_of_its_span() -> None:
    several = replace(sample(), spans=[(2, "w0"), (6, "w1"), (8, "w2"), (10, "w3"), (12, "w1")])
    assert several.versions == {"w1": [6, 7, 12, 13, 14], "w2": [8, 9]}
    assert replace(sample(), spans=[(8, "w1")]).versions == {"": [6, 7], "w1": [8, 9, 12, 13, 14]}


async def test_the_summary_says_how_many_weights_there_were() -> None:
    assert "weight versions" not in (await check(sample())).summary()
    others = replace(sample(), spans=[(6, "w1"), (8, "w2")]), replace(sample(), spans=[(6, "w3")])
    summary = (await check(sample(), *others)).summary()
    assert "3 samples, 21 sampled tokens from 3 weight versions, 1 sample with two or more," in summary


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_fails_its_row_alone(fault: Callable[[Sample], Sample]) -> None:
    report = await check(sample("good"), fault(sample("bad")))
    assert [row.sample_id for row in report.failures] == ["bad"]
    assert "1 of 2 samples fail" in report.summary()


async def test_a_small_drift_fails_by_the_mean() -> None:
    report = await check(sample(noise=5e-5))
    assert "mean difference" in report.failures[0].problem


async def test_bfloat16_is_wider_and_says_weak() -> None:
    report = await check(sample(noise=0.05), dtype="bfloat16")
    assert report.failures == []
    assert "weak" in report.summary()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"logprobs": [None] * 15}, "have no logprob"),
        ({"loss_mask": [0] * 15}, "no sampled token"),
        ({"loss_mask": [1] * 15, "logprobs": [-1.0] * 15}, "no prompt"),
        ({"logprobs": [-1.0] * 14}, "lengths differ"),
        ({"logprobs": [math.nan] * 15}, "inf"),
    ],
)
async def test_a_malformed_row_is_named(fault: dict[str, list[float | None]], problem: str) -> None:
    report = await check(replace(sample(), **fault))  # type: ignore[arg-type]
    assert problem in report.failures[0].problem


async def test_a_server_that_fails_is_a_failed_row_not_a_pass() -> None:
    async def broken(ids: Sequence[int]) -> list[float | None]:
        raise InfraError("connection refused")

    report = await verify.verify([sample()], broken, verify.tolerance("float32"))
    assert "connection refused" in report.failures[0].problem


async def test_scores_of_another_length_fail() -> None:
    async def short(ids: Sequence[int]) -> list[float | None]:
        return (await score(ids))[:-1]

    report = await verify.verify([sample()], short, verify.tolerance("float32"))
    assert "14 scores for 15 ids" in report.failures[0].problem


async def test_no_more_than_the_limit_at_once() -> None:
    running = peak = 0

    async def counting(ids: Sequence[int]) -> list[float | None]:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        result = await score(ids)
        running -= 1
        return result

    await verify.verify([sample(str(i)) for i in range(20)], counting, verify.tolerance("float32"), concurrency=3)
    assert peak == 3


@pytest.mark.parametrize("serving", ["w2", ""])
def test_other_weights_are_refused(serving: str) -> None:
    with pytest.raises(CheckError, match="sampled from weights w1"):
        verify.check_versions([sample()], serving)


def test_the_recorded_weights_are_accepted() -> None:
    verify.check_versions([sample()], "w1")
