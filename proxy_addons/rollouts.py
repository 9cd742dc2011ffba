"""The rollouts that a recorder answers for: who may call, how much, and until when. Synchronous; no sockets, no files.

A rollout is registered before its harness starts and sealed before it is graded. Each attempt is its own rollout with
its own token. Whether a call may start, and whether its answer may still be kept, is asked here and nowhere else.
"""

import asyncio
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from openforge.ids import CallId, RolloutId
from openforge.tokens.graph import Graph, Ids, Turn, prompt_ids
from proxy_addons.dialects.base import WireError

_TIPS = 4  # newest answers whose ids are kept as JSON text: the main thread and a few sub-agents


class State(StrEnum):
    OPEN = "open"
    SEALED = "sealed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit. `tokens` counts the ids that calls added, each once; `time_s` runs from registration."""

    calls: int | None = None
    tokens: int | None = None
    time_s: float = 3600.0


@dataclass(slots=True, eq=False)
class Call:
    """A call in flight. `cause` is set by whoever ends it early."""

    call_id: CallId
    dialect: str
    stream: bool
    started: float = field(default_factory=time.monotonic)
    stage: str = "reading"
    task: asyncio.Task[bytes] | None = None
    cause: WireError | None = None

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started


@dataclass(slots=True)
class Totals:
    """What a rollout used. `tokens` are ids added, each once; prompt tokens count again on every call, as bills do.
    `limited` counts those of `aborted` that were over a limit."""

    calls: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    aborted: int = 0
    limited: int = 0
    refused: int = 0


class Tips:
    """Prompt and answer of the newest turns as the inside of a JSON list: what the engine is sent, grown in place of
    being written anew (30,000 ids cost 2 ms to write, 0.03 ms to extend)."""

    def __init__(self) -> None:
        self._json: OrderedDict[CallId, bytes] = OrderedDict()

    def prompt(self, parent: Turn | None, input_ids: Ids) -> bytes:
        if parent is None:
            return _json(input_ids)
        known = self._json.get(parent.call_id)
        if known is None:
            return _json(prompt_ids(parent, input_ids))
        return b",".join((known, _json(input_ids)))  # joined, not added: one copy of a long prompt, not two

    def push(self, turn: Turn, prompt: bytes) -> None:
        if turn.parent is not None:
            self._json.pop(turn.parent.call_id, None)
        self._json[turn.call_id] = b",".join((prompt, _json(turn.answer_ids)))
        while len(self._json) > _TIPS:
            self._json.popitem(last=False)


def _json(ids: Ids) -> bytes:
    return orjson.dumps(ids.tolist())[1:-1]


class Rollout:
    """One attempt."""

    def __init__(
        self,
        rollout_id: RolloutId,
        attempt: int,
        token: str,
        limits: Limits,
        egress_allow: tuple[str, ...] = (),
    ) -> None:
        self.id = rollout_id
        self.attempt = attempt
        self.token = token
        self.limits = limits
        self.egress_allow = egress_allow
        self.state = State.OPEN
        self.deadline = time.monotonic() + limits.time_s
        self.totals = Totals()
        self.graph = Graph()
        self.tips = Tips()
        self.items: dict[CallId, array[int]] = {}  # digests of a call's wire items, for its successor's record
        self.in_flight: dict[CallId, Call] = {}
        self.invalid_calls: dict[CallId, int] = {}  # tool calls that could not be run, by the call that brought them
        self.body_bytes = 0  # of requests that are being read or answered
        self.summary: dict[str, Any] | None = None

    def admit(self, call: Call) -> None:
        """Let a call start, or raise the WireError that says why not. 403 and 410: no client asks again after those."""
        self.check_limits()
        self.totals.calls += 1
        self.in_flight[call.call_id] = call

    def check_limits(self) -> None:
        """Asked before a request's body is read, and again when it is there."""
        self.check_open()
        if self.limits.calls is not None and self.totals.calls >= self.limits.calls:
            raise WireError(403, "limit_calls", f"this rollout has made its {self.limits.calls} calls")
        if self.room() < 1:
            raise WireError(403, "limit_tokens", f"this rollout has used its {self.limits.tokens} tokens")
        if time.monotonic() >= self.deadline:
            raise WireError(403, "limit_time", f"this rollout has used its {self.limits.time_s:g} seconds")

    def check_open(self) -> None:
        """Asked again right before a commit: an answer that comes after the seal is not kept."""
        if self.state is not State.OPEN:
            raise WireError(410, self.state.value, f"this rollout is {self.state}")

    def room(self) -> int:
        """Ids that may still be added."""
        return (1 << 62) if self.limits.tokens is None else self.limits.tokens - self.totals.tokens

    def add(self, tokens: int, prompt_tokens: int, completion_tokens: int) -> None:
        """Count an answered call."""
        self.totals.tokens += tokens
        self.totals.prompt_tokens += prompt_tokens
        self.totals.completion_tokens += completion_tokens

    def count_invalid(self, call: Call, tool_calls: int) -> None:
        """Count the tool calls of an answered call that no harness could run."""
        if tool_calls:
            self.invalid_calls[call.call_id] = tool_calls

    def end(self, state: State) -> None:
        """Refuse what comes, cancel what is under way. Does not wait for anything."""
        self.state = state
        for call in list(self.in_flight.values()):
            call.cause = WireError(410, state.value, f"this rollout is {state}")
            if call.task is not None:
                call.task.cancel()

    def forget(self) -> None:
        """Free the conversation; counters stay."""
        self.graph, self.tips, self.items = Graph(), Tips(), {}


class Registry:
    """Rollouts by id and by token."""

    def __init__(self) -> None:
        self._by_id: dict[str, Rollout] = {}
        self._by_token: dict[str, Rollout] = {}

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self._by_id.values())

    def register(self, new: Rollout) -> Rollout:
        """Add an attempt. The same one again changes nothing; a newer one drops the older. WireError on conflict."""
        old = self._by_id.get(new.id)
        if old is not None and (new.attempt, new.token) == (old.attempt, old.token):
            return old
        if old is not None and new.attempt <= old.attempt:
            raise WireError(409, "attempt", f"{new.id} already has attempt {old.attempt}")
        if new.token in self._by_token:
            raise WireError(409, "token", "this token belongs to another rollout")
        if old is not None:
            self.drop(old)
        self._by_id[new.id] = self._by_token[new.token] = new
        return new

    def get(self, rollout_id: str) -> Rollout:
        rollout = self._by_id.get(rollout_id)
        if rollout is None:
            raise WireError(404, "unknown_rollout", f"no rollout {rollout_id!r} is registered")
        return rollout

    def by_token(self, token: str) -> Rollout | None:
        return self._by_token.get(token)

    def drop(self, rollout: Rollout) -> None:
        """End an attempt without samples. Its token stays known, so that late calls are told why."""
        rollout.end(State.DROPPED)
        rollout.forget()
