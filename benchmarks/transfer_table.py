"""From graded rollouts of each arm and seed to the table of `./just bench transfer` and its sentence; pure.

Intervals treat rollouts as independent and are given these training runs: how much another seed would differ is what
the lowest and the highest seed beside them show. Rollouts that an error of ours ended are left out and counted.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.reworded import SET
from trainer.evaluation import SUCCESS, Estimate, Graded, wilson

type Results = Mapping[tuple[str, int], Sequence[Graded]]
"""Rollouts by arm and seed."""

ALL = "all"
COLUMNS = {"trained_on": "tasks trained on", "held_out": "held-out tasks", "paraphrased": "paraphrased tasks"}


@dataclass(frozen=True)
class Cell:
    """Successes and graded rollouts by seed."""

    successes: Mapping[int, int]
    n: Mapping[int, int]

    @property
    def success(self) -> Estimate:
        """The share over all seeds, with Wilson's interval."""
        successes, n = sum(self.successes.values()), sum(self.n.values())
        return Estimate(successes / n, *wilson(successes, n))

    @property
    def by_seed(self) -> dict[int, float]:
        return {seed: self.successes[seed] / n for seed, n in self.n.items()}


@dataclass(frozen=True)
class Row:
    """One arm in one harness (or all). A cell is None where no rollout was graded, as when no task was held out."""

    arm: str
    harness: str
    cells: Mapping[str, Cell | None]
    errors: int


def column_of(task: str, trained: Collection[str]) -> str:
    """The column that a task's rollouts count in; `trained`: refs of the tasks that the trained arms trained on."""
    if task.startswith(f"{SET}/"):
        return "paraphrased"
    return "trained_on" if task in trained else "held_out"


def table(results: Results, trained: Collection[str]) -> list[Row]:
    """Rows by arm, then harness, in the order they first came; the last of an arm is all its harnesses together."""
    rows = []
    for arm in dict.fromkeys(arm for arm, _ in results):
        seeds = {seed: graded for (name, seed), graded in results.items() if name == arm}
        harnesses = dict.fromkeys(one.harness for graded in seeds.values() for one in graded)
        for harness in (*harnesses, ALL):
            mine = {s: [one for one in graded if harness in (one.harness, ALL)] for s, graded in seeds.items()}
            errors = sum(one.reward is None for graded in mine.values() for one in graded)
            rows.append(Row(arm, harness, {column: _cell(mine, column, trained) for column in COLUMNS}, errors))
    return rows


def _cell(seeds: Mapping[int, Sequence[Graded]], column: str, trained: Collection[str]) -> Cell | None:
    successes, n = {}, {}
    for seed, graded in seeds.items():
        mine = [one for one in graded if column_of(one.task, trained) == column]
        rewards = [one.reward for one in mine if one.reward is not None]
        if rewards:
            successes[seed], n[seed] = sum(reward >= SUCCESS for reward in rewards), len(rewards)
    return Cell(successes, n) if n else None


def difference(after: Cell, before: Cell) -> Estimate:
    """`after` minus `before` with Newcombe's 95 % interval of two independent shares (1998, method 10)."""
    one, two = after.success, before.success
    value = one.value - two.value
    low = math.hypot(one.value - one.low, two.high - two.value)
    high = math.hypot(one.high - one.value, two.value - two.low)
    return Estimate(value, value - low, value + high)


def change(rows: Sequence[Row], arm: str, harness: str) -> Estimate | None:
    """How much `arm` changed success on the tasks trained on, against `before`; None when one of them is not there."""
    after, before = (_of(rows, name, harness) for name in (arm, "before"))
    return difference(after, before) if after and before else None


def _of(rows: Sequence[Row], arm: str, harness: str) -> Cell | None:
    return next((row.cells["trained_on"] for row in rows if (row.arm, row.harness) == (arm, harness)), None)


def sentence(rows: Sequence[Row], harnesses: Sequence[str] = ("pi", "codex")) -> str:
    """What the numbers say of training in react alone, in other harnesses: no more than the intervals allow."""
    found = [text for harness in harnesses if (text := _verdict(rows, harness))]
    if not found:
        return "Nothing can be said yet of training on react alone: the arms `before` and `one` are not both evaluated."
    return (
        f"Training on react alone {' and '.join(found)}: success on the tasks trained on against the starter, 95 % "
        "intervals over rollouts, which say nothing of other training seeds."
    )


def _verdict(rows: Sequence[Row], harness: str) -> str:
    changed, after, before = change(rows, "one", harness), _of(rows, "one", harness), _of(rows, "before", harness)
    if changed is None or after is None or before is None:
        return ""
    verb = "lifted" if changed.low > 0 else "lowered" if changed.high < 0 else "did not measurably change"
    both = after.by_seed.keys() & before.by_seed.keys()
    up = sum(after.by_seed[seed] > before.by_seed[seed] for seed in both)
    numbers = f"{changed.value:+.2f} [{changed.low:+.2f}, {changed.high:+.2f}]"
    return f"{verb} {harness} ({numbers}, higher in {up} of {len(both)} seeds)"


def markdown(rows: Sequence[Row]) -> str:
    """The table; a cell is `success [interval] of n rollouts; lowest seed–highest seed`."""
    header = ("arm", "evaluated in", *COLUMNS.values(), "errors of ours")
    lines = [header, ("---",) * len(header), *map(_texts, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _texts(row: Row) -> tuple[str, ...]:
    return (row.arm, row.harness, *(_text(row.cells[column]) for column in COLUMNS), str(row.errors))


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    success, seeds = cell.success, cell.by_seed.values()
    spread = f"; seeds {min(seeds):.2f}–{max(seeds):.2f}" if len(seeds) > 1 else "; one seed"
    return f"{success.value:.2f} [{success.low:.2f}, {success.high:.2f}] of {sum(cell.n.values())}{spread}"


def as_json(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The rows with every number, a column that is `-` in the table as null."""
    for row in rows:
        cells: dict[str, Any] = {}
        for column, cell in row.cells.items():
            cells[column] = cell and {
                "success": cell.success.value,
                "low": cell.success.low,
                "high": cell.success.high,
                "n": sum(cell.n.values()),
                "by_seed": {str(seed): value for seed, value in cell.by_seed.items()},
            }
        yield {"arm": row.arm, "harness": row.harness, **cells, "errors": row.errors}
