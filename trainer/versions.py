"""What weights are called: by the step that made them, so that no two weights of a run share a name.

A training that was resumed makes some steps a second time, with other weights: `7.1` is the step 7 of its first new
start. What it was resumed from keeps the name that it had. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Versions:
    """`incarnation` counts the starts of a training from 0; this one began at `from_step`, with weights that are
    called `from_version` (empty: as their step)."""

    incarnation: int = 0
    from_step: int = 0
    from_version: str = ""

    @classmethod
    def from_settings(cls, ours: Mapping[str, Any]) -> Self:
        """Of the table `openforge` in veRL's configuration, as main.py fills it in."""
        return cls(ours.get("incarnation", 0), ours.get("from_step", 0), ours.get("from_version") or "")

    def name(self, step: int) -> str:
        if step == self.from_step and self.from_version:
            return self.from_version
        return str(step) if self.incarnation == 0 or step <= self.from_step else f"{step}.{self.incarnation}"


def step_of(version: str) -> int:
    """The training step of a weight version. ValueError for a name that is no step's."""
    return int(version.partition(".")[0])
