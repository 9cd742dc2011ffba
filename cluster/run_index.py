"""What the journal of a run already says, read once: how its rollouts stand, and where their samples are.

Reading goes on where it stopped, so that each byte is looked at once however often somebody asks; samples are found
again by their place and not kept in memory. Blocking: call it from a thread. It writes nothing.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.rollout import LOST, Account
from cluster.states import State, is_terminal
from cluster.training import Trainer
from openforge.ids import RolloutId, split_rollout_id
from openforge.journal.reader import Place, Tail, read_place
from openforge.journal.records import KINDS

_KINDS = ("run.start", "train.start", "rollout.state", "grade", "sample")
_CHUNK_BYTES = 4 << 20  # decoded, ids take many times their text
_SAMPLE = tuple(column.name for column in KINDS["sample"])


class RunIndex:
    """Threads may share it. What it says of rollouts that are under way now is late; ask the orchestrator."""

    def __init__(self, run_dir: Path) -> None:
        self.starts = 0  # of orchestrators
        self.trainer: Trainer | None = None  # the latest
        self.rollouts: dict[RolloutId, Account] = {}
        self._run_dir = run_dir
        self._tail = Tail(run_dir, _KINDS)
        self._samples: dict[tuple[str, int], list[Place]] = defaultdict(list)
        self._rewards: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()

    def catch_up(self) -> None:
        """Read what has come since the last time. Raises JournalError, OSError."""
        with self._lock:
            while True:
                for place, record in self._tail.poll_places(_CHUNK_BYTES):
                    self._take(place, record)
                if not self._tail.more:
                    return

    def samples(self, rollout: str, attempt: int) -> list[dict[str, Any]]:
        """The training rows of one attempt, every declared column of them, the main path last."""
        self.catch_up()
        with self._lock:
            places = list(self._samples[rollout, attempt])
        records = [read_place(self._run_dir, place) for place in places]
        rows = [{name: record.get(name) for name in _SAMPLE} for record in records]
        return sorted(rows, key=lambda row: bool(row["is_main"]))

    def _take(self, place: Place, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "run.start":
                self.starts += 1
            case "train.start":
                if self.trainer is None or record["incarnation"] > self.trainer.incarnation:
                    self.trainer = Trainer(record["incarnation"], record["from_step"])
            case "sample":
                self._samples[record["rollout_id"], record["attempt"]].append(place)
            case "grade":
                self._rewards[record["rollout_id"], record["attempt"]] = record["reward"]
            case "rollout.state":
                self._take_state(record)

    def _take_state(self, record: Mapping[str, Any]) -> None:
        name, attempt, state = RolloutId(record["rollout_id"]), record["attempt"], record["state"]
        known = self.rollouts.get(name)
        if known is not None and (attempt, _reach(state)) < (known.attempt, _reach(known.state)):
            return  # orchestrators are read by name, not in the order of their lives
        if state == State.QUEUED:
            self.rollouts[name] = Account(
                rollout_id=name,
                state=LOST,
                finished=True,
                attempt=attempt,
                task=record["task"],
                harness=record["harness"],
                sample=split_rollout_id(name).sample,
                seed=record["seed"],
                purpose=record.get("purpose"),
                step=record.get("step"),
                group=record.get("group_id"),
                key=record.get("key"),
            )
        elif known is not None and is_terminal(State(state)):
            self.rollouts[name] = replace(
                known,
                state=state,
                reward=self._rewards.get((name, attempt)) if state in (State.DONE, State.FAILED) else None,
                error_class=record.get("error_class"),
                detail=record.get("detail") or "",
                exit_code=record.get("exit_code"),
                duration_s=record.get("duration_s") or 0.0,
                invalid_calls=record.get("invalid_calls"),
            )


def _reach(state: str) -> bool:
    return state != LOST and is_terminal(State(state))
