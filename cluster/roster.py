"""Which rollouts a run has, those of earlier orchestrators included, and which of them a new request means.

Pure data. The same task, harness and sample is always the same rollout, and so is the same key; one that ended without
a grade (cancelled, lost with its orchestrator, an error of ours) gets a new attempt when it is asked for again.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cluster.attempt import RolloutSpec
from cluster.rollout import Account, Rollout, account_of, ended_before
from openforge.errors import UsageError
from openforge.harness import HarnessManifest
from openforge.ids import RolloutId, RunId, rollout_id, split_rollout_id
from openforge.task import Task


class ConflictError(UsageError):
    """What is asked for contradicts what was asked for before."""


class Roster:
    """`live`: the rollouts of this orchestrator. `seed`: that of sample 0; sample n has seed + n."""

    def __init__(self, run_id: RunId, seed: int) -> None:
        self.live: dict[RolloutId, Rollout] = {}
        self._run_id, self._seed = run_id, seed
        self._before: dict[RolloutId, Account] = {}
        self._keys: dict[str, RolloutId] = {}
        self._next_sample: Counter[tuple[str, str]] = Counter()

    def restore(self, accounts: Mapping[RolloutId, Account]) -> None:
        """Take over what earlier orchestrators of this run left."""
        self._before = dict(accounts)
        for name, account in accounts.items():
            parts = split_rollout_id(name)
            self._note(name, parts.task, parts.harness, parts.sample, account.key)

    def find(self, name: str) -> Account:
        """Raises UsageError when the run has no such rollout."""
        rollout = self.live.get(RolloutId(name))
        account = self._before.get(RolloutId(name)) if rollout is None else account_of(rollout)
        if account is None:
            raise UsageError(f"no rollout {name!r} in run {self._run_id}", hint="`openforge rollouts` lists them")
        return account

    def accounts(self) -> list[Account]:
        """Every rollout of the run, by its id."""
        return [self.find(name) for name in sorted(self._before.keys() | self.live.keys())]

    def spec(
        self,
        task: Task,
        harness: HarnessManifest,
        *,
        sample: int | None = None,
        seed: int | None = None,
        key: str | None = None,
        **purpose: Any,
    ) -> RolloutSpec:
        """What a request means: without `sample` the next free number, with a known `key` the rollout that has it.

        Raises ConflictError when the key belongs to a rollout of another task, harness or sample.
        """
        if key is not None and key in self._keys:
            known = self.find(self._keys[key])
            asked = (task.ref, harness.name, known.sample if sample is None else sample)
            if asked != (known.task, known.harness, known.sample):
                raise ConflictError(
                    f"key {key!r} is that of {known.rollout_id}, not of {task.ref} with {harness.name}",
                    hint="give each rollout a key of its own",
                )
            sample, seed = known.sample, known.seed
        if sample is None:
            sample = self._next_sample[task.name, harness.name]
        return RolloutSpec(task, harness, sample, self._seed + sample if seed is None else seed, key=key, **purpose)

    def admit(self, spec: RolloutSpec) -> tuple[Rollout, bool]:
        """The rollout that `spec` means, and whether it is new to the queue: made now, or begun again."""
        name = rollout_id(self._run_id, spec.task.name, spec.harness.name, spec.sample)
        self._note(name, spec.task.name, spec.harness.name, spec.sample, spec.key)
        known = self.live.get(name)
        before = self._before.get(name) if known is None else account_of(known)
        if before is not None and before.void:
            attempt = before.attempt + 1  # an attempt is never resumed half-way
            rollout = Rollout(name, spec, attempt=attempt, first_attempt=attempt)
        elif known is not None:
            return known, False
        else:
            rollout = Rollout(name, spec) if before is None else ended_before(before, spec)
        self.live[name] = rollout
        return rollout, not rollout.finished.is_set()

    def _note(self, name: RolloutId, task: str, harness: str, sample: int, key: str | None) -> None:
        if key is not None:
            self._keys[key] = name
        self._next_sample[task, harness] = max(self._next_sample[task, harness], sample + 1)
