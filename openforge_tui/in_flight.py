"""The model calls in flight over every run of a store that goes on, as their orchestrators tell.

One request a run at a time: an orchestrator that hangs holds up nobody else, and is asked again once it has failed.
Does not know a screen.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from openforge.errors import UsageError
from openforge.ids import split_rollout_id
from openforge.store.fold import Answered
from openforge_tui.live_status import Answer, ask, faces, session
from openforge_tui.orchestrators import is_alive
from openforge_tui.reader import Followed

type Row = dict[str, Any]

GROUPS = ("", "shard", "harness")
_PATIENCE_S = 0.8  # that one look waits for those that have not answered
RATE_S = 10.0  # over which tokens a second are counted
_LATE_S = 2.0  # without an answer for longer, it is said
_UNDER_WAY = ("starting", "running", "grading")


@dataclass(frozen=True)
class Standing:
    """A run that goes on. `told`: its last /status, None when none has come; `silent_s` since then; `process`: whether
    the one that it named is there and was it."""

    run_id: str
    told: Mapping[str, Any] | None
    silent_s: float
    pid: int
    process: bool

    @property
    def trouble(self) -> str:
        """What is wrong with it, or nothing."""
        if self.silent_s <= _LATE_S:
            return ""
        if self.process:
            silent = f"for {self.silent_s:.0f} s now (process {self.pid})"
            return f"run {self.run_id}: its orchestrator does not answer, {silent}"
        # One that was dead before anybody looked left its file behind; `openforge runs` shows it as broken off.
        died = f"run {self.run_id}: its orchestrator, process {self.pid}, died; what it has graded stays"
        return died if self.told is not None else ""

    @property
    def fresh(self) -> bool:
        return self.told is not None and self.silent_s <= _LATE_S

    def count(self, *states: str) -> int:
        """Rollouts in these states."""
        rollouts = (self.told or {}).get("rollouts", {})
        return sum(int(rollouts.get(state, 0)) for state in states)

    def summary(self, answered: Sequence[Answered] = ()) -> str:
        """One line: its rollouts, its calls by shard, and how fast tokens are `answered`."""
        counts = {
            "queued": self.count("queued"),
            "running": self.count(*_UNDER_WAY),
            **{state: self.count(state) for state in ("done", "failed", "error")},
        }
        rollouts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        shards = Counter(call.get("shard") or 0 for call in (self.told or {}).get("calls", []))
        calls = ", ".join(f"{count} on shard {shard}" for shard, count in sorted(shards.items()))
        rate = f" · {tokens_s(answered):.0f} tokens/s" if answered else ""
        return f"{self.run_id}  rollouts: {rollouts or 'none'} · calls: {calls or 'none'}{rate}"


class InFlight:
    """`look` as often as you like; `close` at the end."""

    def __init__(self, store_root: Path) -> None:
        self._store_root = store_root
        self._http: aiohttp.ClientSession | None = None
        self._asking: dict[str, asyncio.Task[Answer]] = {}
        self._told: dict[str, tuple[dict[str, Any], float]] = {}  # the answer and when it came
        self._since: dict[str, float] = {}  # when a run was seen first
        self._last: dict[str, Answer] = {}

    async def look(self) -> list[Standing]:
        """How each run stands, in the order of their ids."""
        files = await asyncio.to_thread(faces, self._store_root)
        if self._http is None:
            self._http = session()
        runs = [file.parent.name for file in files]
        for file, run_id in zip(files, runs, strict=True):
            self._since.setdefault(run_id, time.monotonic())
            if run_id not in self._asking:
                self._asking[run_id] = asyncio.create_task(ask(self._http, file))
        for run_id in self._asking.keys() - set(runs):  # it has ended
            self._asking.pop(run_id).cancel()
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=_PATIENCE_S)
        for run_id in [run_id for run_id, task in self._asking.items() if task.done()]:
            answer = self._last[run_id] = self._asking.pop(run_id).result()
            if answer.told is not None:
                self._told[run_id] = (answer.told, time.monotonic())
        every: list[dict[str, Any]] = [self._told, self._since, self._last]
        for known in every:
            for run_id in known.keys() - set(runs):
                del known[run_id]
        return [self._standing(run_id) for run_id in runs]

    def _standing(self, run_id: str) -> Standing:
        told, at = self._told.get(run_id, (None, self._since[run_id]))
        answer = self._last.get(run_id, Answer(None))
        left_over = told is None and answer.nobody  # and its number may be another's by now
        return Standing(run_id, told, time.monotonic() - at, answer.pid, is_alive(answer.pid) and not left_over)

    async def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.close()


def call_rows(standings: Sequence[Standing]) -> list[Row]:
    """One row a call in flight, the oldest first; of runs that do not answer nothing is known."""
    rows = [
        _row(standing.run_id, call)
        for standing in standings
        if standing.fresh and standing.told is not None
        for call in standing.told.get("calls", [])
    ]
    return sorted(rows, key=lambda row: -row["age_s"])


def _row(run_id: str, call: Mapping[str, Any]) -> Row:
    rollout_id = str(call.get("rollout_id", ""))
    try:
        parts = split_rollout_id(rollout_id)
        task, harness, sample = parts.task, parts.harness, parts.sample
    except UsageError:
        task, harness, sample = rollout_id, "", 0
    return {
        "key": f"{run_id}/{call.get('call_id')}",
        "run": run_id,
        "recorder_id": call.get("recorder_id"),
        "shard": call.get("shard") or 0,
        "age_s": float(call.get("age_s", 0.0)),
        "stage": call.get("stage"),
        "dialect": call.get("dialect"),
        "stream": "stream" if call.get("stream") else "whole",
        "task": task,
        "harness": harness,
        "sample": sample,
        "rollout_id": rollout_id,
        "call_id": call.get("call_id"),
    }


def just_answered(followed: Sequence[Followed], now: float) -> dict[str, list[Answered]]:
    """By run, the calls that ended in the last RATE_S seconds; a clock elsewhere, or one set back, may be ahead."""
    return {
        one.fold.run_id: [call for call in list(one.fold.recent) if abs(now - call.ts) < RATE_S] for one in followed
    }


def tokens_s(answered: Iterable[Answered]) -> float:
    """Tokens sampled a second, by calls as they ended."""
    return sum(call.tokens for call in answered) / RATE_S


def by_group(rows: Sequence[Row], name: str, answered: Mapping[str, Sequence[Answered]]) -> list[Row]:
    """One row a shard (of a run) or harness: its calls, how old they are, in which stages, how fast it answers."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    shards = {row["recorder_id"]: row["shard"] for row in rows}
    done: dict[tuple[Any, ...], list[Answered]] = {}
    for row in rows:
        groups.setdefault((row["run"], row["shard"]) if name == "shard" else (row[name],), []).append(row)
    for run_id, calls in answered.items():
        for call in calls:
            whose = (run_id, shards.get(call.recorder_id)) if name == "shard" else (call.rollout_id.split(".")[2],)
            done.setdefault(whose, []).append(call)
    made = []
    for key, some in sorted(groups.items()):
        stages = Counter(str(row["stage"]) for row in some)
        made.append(
            {
                "key": " ".join(map(str, key)),
                "group": f"{key[0]} shard {key[1]}" if name == "shard" else key[0],
                "filter": f"-l run={key[0]},shard={key[1]}" if name == "shard" else f"-l {name}={key[0]}",
                "calls": len(some),
                "rollouts": len({row["rollout_id"] for row in some}),
                "oldest": max(row["age_s"] for row in some),
                "mean": sum(row["age_s"] for row in some) / len(some),
                "tokens_s": tokens_s(done.get(key, ())),
                "stages": ", ".join(f"{stage} {count}" for stage, count in sorted(stages.items())),
            }
        )
    return made
