"""Verify samples of a policy that was learning meanwhile: each span against the weights that sampled it.

A training run keeps some of the weights it made as checkpoints, each of which says what it is called. Samples of the
others cannot be verified: they are counted, never passed. Scores with transformers, so that the engine which sampled is
not its own witness. Long work: gives way to the event loop after each row.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openforge.config import Config
from openforge.errors import OpenForgeError, UsageError
from openforge_tui.train import first_weights
from openforge_tui.verify import Report, Row, Sample, Tolerance, compare, failed, malformed, tolerance
from trainer.checkpoints import checkpoints, saved_version, weights_of

FIRST = "0"
"""What the weights are called that a training run began with."""


def saved_weights(trainer_folder: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """The model folder of each weight version that there still is.

    Of a checkpoint only its marker counts: the name of a step's folder is the same in every start of the trainer.
    """
    found: dict[str, Path] = {}
    try:
        found[FIRST] = first_weights(trainer_folder)
    except UsageError as error:
        say(f"{error}: what they sampled cannot be verified")
    for checkpoint in checkpoints(trainer_folder):
        weights = weights_of(checkpoint)
        if (weights / "config.json").is_file():
            found[saved_version(checkpoint)] = weights
    return found


async def verify_training(
    samples: Sequence[Sample], weights: Mapping[str, Path], config: Config, say: Callable[[str], None]
) -> Report:
    """Score every sample all of whose weights are in `weights`. Raises UsageError when there is none or the kept
    logprobs are not those of the whole distribution, OpenForgeError for weights that cannot be loaded."""
    sampling = config.policy.sampling
    if sampling.top_p < 1 or sampling.top_k != -1:
        raise UsageError("top_p or top_k cut what was sampled from: those logprobs cannot be recomputed")
    unsaved = {version for sample in samples for version in sample.versions if version} - weights.keys()
    kept = [sample for sample in samples if not sample.versions.keys() & unsaved]
    limits = tolerance(config.policy.dtype)
    rows = await _rows(kept, weights, config, limits, say)
    report = Report(rows, limits, tuple(sorted(unsaved, key=_order)), len(samples) - len(kept))
    if not kept:
        raise UsageError(report.unverified(), hint="openforge train --set trainer.save_every=1")
    return report


async def _rows(
    samples: Sequence[Sample],
    weights: Mapping[str, Path],
    config: Config,
    limits: Tolerance,
    say: Callable[[str], None],
) -> tuple[Row, ...]:
    from trainer.score import Scorer

    wrong = {number: problem for number, sample in enumerate(samples) if (problem := _problem(sample))}
    scored: list[list[float | None]] = [[None] * len(sample.token_ids) for sample in samples]
    for version in sorted({version for sample in samples for version in sample.versions if version}, key=_order):
        mine = [number for number, sample in enumerate(samples) if version in sample.versions and number not in wrong]
        say(f"scoring {len(mine)} samples against weights {version} …")
        policy = config.policy
        scorer = Scorer(weights[version], dtype=policy.dtype, temperature=policy.sampling.temperature)
        for number in mine:
            await asyncio.sleep(0)
            positions = samples[number].versions[version]
            try:
                found = scorer.score(samples[number].token_ids, positions)
            except OpenForgeError as error:
                wrong[number] = f"no score: {error}"
                continue
            for position, value in zip(positions, found, strict=True):
                scored[number][position] = value
    return tuple(
        failed(sample, wrong[number]) if number in wrong else compare(sample, scored[number], limits)
        for number, sample in enumerate(samples)
    )


def _problem(sample: Sample) -> str:
    if problem := malformed(sample):
        return problem
    unnamed = sample.versions.get("", [])
    return f"{len(unnamed)} sampled tokens do not say which weights sampled them" if unnamed else ""


def _order(version: str) -> tuple[int, ...]:
    """`7` before `7.1` before `10`."""
    return tuple(map(int, version.split(".")))
