"""Which groups a training run rolls out, in order: decided once, from a seed, before it starts.

Every task comes round before any comes twice; harnesses are drawn by weight so that any stretch of the plan has close
to the asked mix. A resumed run reads on in the same plan.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from openforge.errors import UsageError
from trainer.evaluation import FIRST_SEED


class Group(NamedTuple):
    """Rollouts of one task in one harness from the same start files."""

    task: str
    harness: str
    seed: int
    purpose: str = "train"


def training_groups(tasks: Sequence[str], mix: Mapping[str, float], count: int, seed: int) -> list[Group]:
    """The first `count` groups. UsageError when there is no task, no harness or no weight above 0."""
    weights = {name: weight for name, weight in mix.items() if weight > 0}
    if not tasks or not weights:
        raise UsageError("training needs a task and a harness with a weight above 0", hint="openforge config show")
    pick = random.Random(seed)
    rounds = zip(_rounds(tasks, pick), _by_weight(weights), strict=False)  # neither ends
    return [Group(task, harness, pick.randrange(FIRST_SEED)) for task, harness in islice(rounds, count)]


def evaluation_groups(tasks: Sequence[str], harnesses: Sequence[str], samples: int, seed: int) -> list[Group]:
    """Every task in every harness, `samples` times, each from its own start files that training never sees."""
    return [
        Group(task, harness, FIRST_SEED + seed + sample, "eval")
        for sample in range(samples)
        for task in tasks
        for harness in harnesses
    ]


def write_plan(path: Path, groups: Sequence[Group]) -> None:
    """One JSON object a line, as plan_dataset.py reads it. The file is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.partial")
    draft.write_bytes(b"".join(orjson.dumps(_fields(group)) + b"\n" for group in groups))
    draft.rename(path)


def _fields(group: Group) -> dict[str, Any]:
    return group._asdict()


def _rounds(tasks: Sequence[str], pick: random.Random) -> Iterator[str]:
    while True:
        yield from pick.sample(list(tasks), len(tasks))


def _by_weight(weights: Mapping[str, float]) -> Iterator[str]:
    """The one that is furthest behind its share comes next: no stretch is far from the mix."""
    credit = dict.fromkeys(weights, 0.0)
    total = sum(weights.values())
    while True:
        for name, weight in weights.items():
            credit[name] += weight / total
        chosen = max(credit, key=lambda name: credit[name])
        credit[chosen] -= 1
        yield chosen
