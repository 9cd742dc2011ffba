"""Which recorded rows are taught, and why every other one is not.

A row is asked one question after the other and the first "no" is its reason; a rollout's reason is that of its main
row. The counts add up: each rollout and each row stands in exactly one line. Pure data; knows neither the store nor
what a trainer does.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TAKEN = "taken"
ALL = "all"
_SIDE_CALL = "auxiliary"  # how the recorder names it


class Row(NamedTuple):
    """A training row without its ids. Equal ids and masks have equal fingerprints; `length` is in tokens.

    `vocab` is the hash of the vocabulary it was recorded with (None: not in the store); `wanted` = by the person's SQL.
    """

    sample_id: str
    length: int
    highest_id: int
    fingerprint: int
    vocab: str | None
    wanted: bool = True


@dataclass(frozen=True)
class Candidate:
    """A rollout and what was recorded of it; the main row is last. `refused` has one reason for each path without a
    row, `has_ids` tells whether any call kept the ids of its answer."""

    run_id: str
    rollout_id: str
    task: str
    harness: str
    state: str
    reward: float | None
    calls: int = 0
    has_ids: bool = True
    rows: tuple[Row, ...] = ()
    refused: tuple[str, ...] = ()
    wanted: bool = True


@dataclass(frozen=True)
class Rules:
    """What a row must be. `vocabs` are hashes of vocabularies whose ids mean what the model's ids mean, `vocab_size` is
    the number of ids the model has, `max_length` its tokens; `per_task` rollouts of a task at most (None: all)."""

    vocabs: frozenset[str]
    vocab_size: int
    max_length: int
    min_reward: float = 1.0
    per_task: int | None = None
    seed: int = 0


class Lesson(NamedTuple):
    """A rollout that is taught, and which of its rows."""

    candidate: Candidate
    rows: tuple[Row, ...]


class Outcome(NamedTuple):
    """One line of the account."""

    outcome: str
    rollouts: int
    rows: int


@dataclass(frozen=True)
class Selection:
    """The lessons by rollout id; `outcomes` begins with what was taken and ends with the sums."""

    lessons: tuple[Lesson, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def rows(self) -> list[Row]:
        return [row for lesson in self.lessons for row in lesson.rows]


def select(candidates: Iterable[Candidate], rules: Rules) -> Selection:
    """Ask every candidate. The same candidates, in any order, and rules give the same selection."""
    rollouts: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    fit: list[Lesson] = []
    seen: set[int] = set()
    for candidate in sorted(candidates, key=lambda candidate: candidate.rollout_id):
        rows.update(map(_refusal, candidate.refused))
        fault = _rollout_fault(candidate, rules)
        if fault:
            rollouts[fault] += 1
            rows[fault] += len(candidate.rows)
            continue
        good = []
        for row in candidate.rows:
            fault = _row_fault(row, rules, seen)
            if fault:
                rows[fault] += 1
            else:
                seen.add(row.fingerprint)
                good.append(row)
        if good:
            fit.append(Lesson(candidate, tuple(good)))
        else:
            rollouts[fault] += 1
    taken = _cap(fit, rules)
    for lesson in fit:
        outcome = TAKEN if lesson in taken else f"more than {rules.per_task} of its task"
        rollouts[outcome] += 1
        rows[outcome] += len(lesson.rows)
    return Selection(tuple(lesson for lesson in fit if lesson in taken), _outcomes(rollouts, rows))


def _rollout_fault(candidate: Candidate, rules: Rules) -> str:
    """Why no row of this rollout is taught; "" when it depends on the row."""
    if not candidate.wanted:
        return "not chosen by the SQL"
    if candidate.state in ("queued", "starting", "running", "grading"):
        return f"still {candidate.state}"
    if candidate.state not in ("done", "failed"):
        return f"ended as {candidate.state}"
    if candidate.reward is None:
        return "not graded"
    if candidate.reward < rules.min_reward:
        return f"reward below {rules.min_reward:g}"
    if candidate.rows:
        return ""
    if candidate.calls == 0:
        return "no model call"
    if not candidate.has_ids:
        return "recorded without a tokenizer"
    worst = [reason for reason in candidate.refused if reason != _SIDE_CALL] or candidate.refused
    return _refusal(worst[-1]) if worst else "no training row"


def _row_fault(row: Row, rules: Rules, seen: set[int]) -> str:
    if not row.wanted:
        return "not chosen by the SQL"
    if row.vocab is None:
        return "its tokenizer is not in the store"
    if row.vocab not in rules.vocabs:
        return "recorded with another tokenizer"
    if row.highest_id >= rules.vocab_size:
        return "ids that the model does not have"
    if row.length > rules.max_length:
        return f"longer than {rules.max_length} tokens"
    if row.fingerprint in seen:
        return "the same as another row"
    return ""


def _refusal(reason: str) -> str:
    return "side call, never taught" if reason == _SIDE_CALL else f"no exact row: {reason}"


def _cap(lessons: Sequence[Lesson], rules: Rules) -> set[Lesson]:
    """At most `per_task` lessons of each task: in turn from the harness that has given least to this task, then to all
    tasks; which lesson of a harness is drawn by the seed."""
    if rules.per_task is None:
        return set(lessons)
    piles: dict[str, dict[str, list[Lesson]]] = defaultdict(lambda: defaultdict(list))
    for lesson in lessons:
        piles[lesson.candidate.task][lesson.candidate.harness].append(lesson)
    taken: set[Lesson] = set()
    given: Counter[str] = Counter()
    for task, by_harness in sorted(piles.items()):
        pick = random.Random(f"{rules.seed}/{task}")
        harnesses = sorted(by_harness)
        for harness in harnesses:
            pick.shuffle(by_harness[harness])
        pick.shuffle(harnesses)
        here: Counter[str] = Counter()
        for _ in range(min(rules.per_task, sum(map(len, by_harness.values())))):
            ready = [harness for harness in harnesses if by_harness[harness]]
            next_ = min(ready, key=lambda harness: (here[harness], given[harness]))
            taken.add(by_harness[next_].pop())
            here[next_] += 1
            given[next_] += 1
    return taken


def _outcomes(rollouts: Counter[str], rows: Counter[str]) -> tuple[Outcome, ...]:
    """What was taken, then the reasons with most rollouts first, then the sums."""
    reasons = [Outcome(reason, rollouts[reason], rows[reason]) for reason in {*rollouts, *rows} - {TAKEN}]
    reasons.sort(key=lambda line: (-line.rollouts, -line.rows, line.outcome))
    return (
        Outcome(TAKEN, rollouts[TAKEN], rows[TAKEN]),
        *reasons,
        Outcome(ALL, rollouts.total(), rows.total()),
    )
