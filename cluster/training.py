"""What a trainer tells of itself, into the run's journal: its starts, the rollouts each step learned from, its numbers.

A trainer that starts again from a checkpoint is a new incarnation: the views leave out what an earlier one did after
that checkpoint (openforge/store/views.py), so a rollout that it trained on and lost is not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cluster.roster import ConflictError
from openforge.journal.writer import JournalWriter


@dataclass(frozen=True)
class Trainer:
    """One start of a trainer; `pid` 0 = not told (it is one of before this orchestrator)."""

    incarnation: int
    from_step: int
    pid: int = 0


class Training:
    """`trainer` is the one at work, or None when this run has had none."""

    def __init__(self, journal: JournalWriter, trainer: Trainer | None) -> None:
        self.trainer = trainer
        self._journal = journal
        self._used = False  # this incarnation has told a step or a number

    def started(self, from_step: int, pid: int) -> Trainer:
        """A trainer begins from the checkpoint of `from_step`. Told twice before it has done anything, it is one."""
        now = self.trainer
        if now is not None and (now.from_step, now.pid) == (from_step, pid) and not self._used:
            return now
        made = Trainer(now.incarnation + 1 if now is not None else 0, from_step, pid)
        self._journal.append("train.start", **asdict(made))
        self.trainer, self._used = made, False
        return made

    def step(
        self, step: int, weight_version: str, rollouts: Sequence[str], samples: int, staleness_max: int | None
    ) -> None:
        """Note which rollouts an update learned from. Raises ConflictError when no trainer has said that it started."""
        if self.trainer is None:
            raise ConflictError("no trainer of this run has started", hint="POST /trainer comes first")
        self._used = True
        self._journal.append(
            "train.step",
            step=step,
            incarnation=self.trainer.incarnation,
            weight_version=weight_version,
            rollouts=list(rollouts),
            samples=samples,
            staleness_max=staleness_max,
        )

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note numbers of a step; RecordError for one that is not finite."""
        incarnation = self.trainer.incarnation if self.trainer is not None else None
        self._used = True
        for name, value in metrics.items():
            self._journal.append("metric", step=step, name=name, value=value, incarnation=incarnation)
