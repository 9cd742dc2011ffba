"""The calls of one rollout as a tree of tokens.

A turn is one answered call: the ids it added to its parent's path (never sampled), then the ids the policy sampled.
Turns hold deltas only; a whole prompt is joined when asked for. A call finds its parent by what its messages mean
(key.py): the deepest answered prefix that ends in a message we sampled, with no other assistant message after it. If
the harness rewrote only its last assistant message, that one turn is rolled back: its prompt stays, the rewritten
message follows unsampled. Anything else starts a new root, and says why.

Pure data: it does not know renderers, engines or files, and is used from one thread.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from openforge.ids import CallId
from openforge.tokens.key import extend, message_key
from openforge.tokens.message import Message

type Ids = array[int]
type Logprobs = array[float]
type Versions = tuple[tuple[int, str], ...]

_KNOWN_KEYS = 4096  # cached message keys a graph; dropped all at once beyond that


class Break(StrEnum):
    """How a call came to its place in the tree; everything but ROOT and APPEND broke a continuation."""

    ROOT = "root"
    APPEND = "append"
    RETRY = "retry"  # the same prompt again: a sibling, both are kept
    BRANCH = "branch"  # another continuation of an answer that was already continued
    ROLLBACK = "rollback:last-assistant"
    NO_MATCH = "fork:no-match"
    FOREIGN = "fork:foreign-assistant"
    PREFILL = "fork:prefill"
    BRIDGE_REFUSED = "fork:bridge-refused"
    BRIDGE_TRIMMED = "fork:bridge-trimmed"
    SYSTEM_CHANGED = "fork:system-changed"
    TOOLS_CHANGED = "fork:tools-changed"
    HISTORY_REWRITE = "fork:history-rewrite"

    @property
    def forks(self) -> bool:
        """True when the call starts a new root, so that its input ids are its whole prompt."""
        return self is Break.ROOT or self.value.startswith("fork:")


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One committed call. `input_ids` continue the parent's prompt and answer (from nothing when there is no parent)."""

    call_id: CallId
    parent: "Turn | None"
    reason: Break
    input_ids: Ids
    answer_ids: Ids
    logprobs: Logprobs | None
    versions: Versions  # (offset in the answer, weight version from there on)
    messages: tuple[Message, ...]  # what the input ids say
    answer: Message
    prompt_len: int  # ids of the whole prompt
    message_count: int  # messages up to and including the answer
    root: bytes
    prompt_key: bytes
    key: bytes
    auxiliary: bool


class Rollback(NamedTuple):
    """The harness rewrote the answer of `turn`: `turn.input_ids` are kept, `rewritten` follows unsampled, then `new`."""

    turn: Turn
    rewritten: Message
    new: tuple[Message, ...]


class Match(NamedTuple):
    """Where a call belongs. `new` is every message after the parent's answer (all of them without a parent)."""

    parent: Turn | None
    new: tuple[Message, ...]
    reason: Break
    messages: tuple[Message, ...]
    root: bytes
    prompt_key: bytes
    rollback: Rollback | None = None
    ready: Ids | None = None  # a retry: the input ids of the same prompt, nothing needs rendering

    @property
    def start(self) -> int:
        """Position in the conversation of the first message of `new`."""
        return len(self.messages) - len(self.new)

    def fork(self, reason: Break) -> "Match":
        """The same call as a new root, e.g. because the renderer could not continue the parent."""
        return self._replace(parent=None, new=self.messages, reason=reason, rollback=None, ready=None)


class Graph:
    """The tree of one rollout attempt."""

    def __init__(self, *, compare_ids: bool = True) -> None:
        self.turns: list[Turn] = []
        self.breaks: Counter[Break] = Counter()
        self._compare_ids = compare_ids
        self._answers: dict[bytes, list[Turn]] = {}  # chain key including the answer -> who answered
        self._prompts: dict[bytes, list[Turn]] = {}  # chain key of a prompt -> who answered it
        self._known: dict[Message, bytes] = {}
        self._claims: Counter[CallId] = Counter()

    def match(self, tools_root: bytes, messages: Sequence[Message]) -> Match:
        """Find where a call with these messages belongs. Changes nothing that a later call could see."""
        chain = self._chain(messages)
        whole = tuple(messages)
        reason = Break.ROOT
        prompt_key = chain[-1] if chain else b""
        last = max((i for i, m in enumerate(whole) if m.role == "assistant"), default=-1)
        if last >= 0:
            parent = self._pick(chain[last], tools_root, whole[last], prompt_key)
            if parent is not None and last + 1 < len(whole):
                return self._retry(Match(parent, whole[last + 1 :], Break.APPEND, whole, tools_root, prompt_key))
            reason = Break.PREFILL if parent is not None else Break.NO_MATCH
        return self._retry(Match(None, whole, reason, whole, tools_root, prompt_key))

    def commit(
        self,
        match: Match,
        *,
        call_id: CallId,
        input_ids: Ids,
        answer: Message,
        answer_ids: Ids,
        logprobs: Logprobs | None,
        versions: Versions = (),
        reason: Break | None = None,
        auxiliary: bool = False,
    ) -> Turn:
        """Add an answered call. With a `reason` that forks, `input_ids` are the whole prompt and the parent is let go."""
        if reason is not None:
            match = match.fork(reason) if reason.forks else match._replace(reason=reason)
        parent = match.parent
        turn = Turn(
            call_id=call_id,
            parent=parent,
            reason=match.reason,
            input_ids=input_ids,
            answer_ids=answer_ids,
            logprobs=logprobs,
            versions=versions,
            messages=match.new,
            answer=answer,
            prompt_len=len(input_ids) + (parent.prompt_len + len(parent.answer_ids) if parent else 0),
            message_count=len(match.messages) + 1,
            root=match.root,
            prompt_key=match.prompt_key,
            key=extend(match.prompt_key, self._key(answer)),
            auxiliary=auxiliary,
        )
        self.turns.append(turn)
        self.breaks[turn.reason] += 1
        self._answers.setdefault(turn.key, []).append(turn)
        self._prompts.setdefault(turn.prompt_key, []).append(turn)
        return turn

    def leaves(self) -> list[Turn]:
        """Turns that nothing continues, in the order they were committed."""
        parents = {turn.parent.call_id for turn in self.turns if turn.parent}
        return [turn for turn in self.turns if turn.call_id not in parents]

    def paths(self) -> list[list[Turn]]:
        """One path, root first, for each leaf."""
        return [path(leaf) for leaf in self.leaves()]

    def _key(self, message: Message) -> bytes:
        key = self._known.get(message)
        if key is None:
            if len(self._known) >= _KNOWN_KEYS:
                self._known.clear()
            key = self._known[message] = message_key(message, compare_ids=self._compare_ids)
        return key

    def _chain(self, messages: Sequence[Message]) -> list[bytes]:
        chain, key = [], b""
        for message in messages:
            key = extend(key, self._key(message))
            chain.append(key)
        return chain

    def _pick(self, key: bytes, root: bytes, echo: Message, prompt_key: bytes) -> Turn | None:
        candidates = [turn for turn in self._answers.get(key, ()) if turn.root == root]
        return candidates[-1] if candidates else None

    def _retry(self, match: Match) -> Match:
        for turn in reversed(self._prompts.get(match.prompt_key, ())):
            if turn.root == match.root and turn.parent is match.parent:
                ready = turn.input_ids if turn.messages == match.new else None
                return match._replace(reason=Break.RETRY, ready=ready)
        return match


def path(turn: Turn) -> list[Turn]:
    """The turns from the root to `turn`."""
    turns = list(ancestors(turn))
    turns.reverse()
    return turns


def ancestors(turn: Turn | None) -> Iterator[Turn]:
    """`turn`, its parent, and so on up to the root."""
    while turn is not None:
        yield turn
        turn = turn.parent


def prompt_ids(parent: Turn | None, input_ids: Ids) -> Ids:
    """The whole prompt of a call that adds `input_ids` to the path of `parent`."""
    joined: Ids = array("i")
    for turn in path(parent) if parent else ():
        joined += turn.input_ids
        joined += turn.answer_ids
    return joined + input_ids


def tail_ids(turn: Turn, n: int) -> Ids:
    """The last `n` ids of the prompt and answer of `turn` (fewer when there are fewer)."""
    pieces: list[Ids] = []
    for at in ancestors(turn):
        for ids in (at.answer_ids, at.input_ids):
            piece = ids[max(0, len(ids) - n) :] if n > 0 else ids[:0]
            pieces.append(piece)
            n -= len(piece)
        if n <= 0:
            break
    tail: Ids = array("i")
    for piece in reversed(pieces):
        tail += piece
    return tail
