"""What makes a starter policy what it is, and the hash of all of it: the same inputs give the same folder's name.

`VERSION` stands for everything that is not a value here (how prompts are rendered, how the rows are cut): raise it when
such code changes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from openforge.harness import HarnessManifest
from openforge.task import Task
from trainer.sft import SftSettings
from trainer.starter.base import PACKAGE
from trainer.starter.cut import FIRST_MERGES
from trainer.starter.model import Shape

VERSION = 1
# Settings that came after the first starters were made: at their defaults they change nothing, so they are not hashed.
_LATER = ("optimizer", "recompute", "gpus")


@dataclass(frozen=True)
class Recipe:
    """The lessons: every task by every harness, `samples` times right and as often wrong, from the same start files."""

    task_refs: tuple[str, ...] = ("desk",)
    harnesses: tuple[str, ...] = ("react", "pi", "codex")
    samples: int = 3
    seed: int = 0
    first_merges: int = FIRST_MERGES
    blur: float = 0.03
    shape: Shape = field(default_factory=Shape)
    sft: SftSettings = field(default_factory=SftSettings)

    def describe(self, tasks: Sequence[Task], harnesses: Sequence[HarnessManifest]) -> dict[str, Any]:
        """Every input, in an order that does not depend on how they were found."""
        recipe = asdict(self)
        for name in _LATER:
            if recipe["sft"][name] == getattr(SftSettings, name):
                del recipe["sft"][name]
        return {
            "version": VERSION,
            "tokenizer": PACKAGE,
            "recipe": recipe,
            "tasks": {task.ref: task.content_hash() for task in sorted(tasks, key=lambda task: task.ref)},
            "harnesses": {
                harness.name: {"version": harness.version, "hash": harness.content_hash()}
                for harness in sorted(harnesses, key=lambda harness: harness.name)
            },
        }


def recipe_hash(description: dict[str, Any]) -> str:
    """12 hex characters."""
    return hashlib.blake2b(orjson.dumps(description, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()
