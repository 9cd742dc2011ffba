"""The calls of one rollout as a tree of tokens.

A turn is one answered call: the ids it added to its parent's path (never sampled), then the ids the policy sampled.
Turns hold deltas only, and keys in place of texts; a whole prompt is joined when asked for. A call continues the turn
whose answer is the last assistant message of its conversation, when everything up to there means the same (key.py). If
the harness rewrote only that last message, the one turn is rolled back: its prompt stays, the rewritten message follows
unsampled. Anything else starts a new root, and says why.

Pure data: it does not know renderers, engines or files, and is used from one thread.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from openforge.ids import CallId
from openforge.tokens.breaks import Break
from openforge.tokens.key import KEY_BYTES, exact_key, extend, message_key
from openforge.tokens.message import Message

__all__ = [
    "Break",
    "Graph",
    "Ids",
    "Logprobs",
    "Match",
    "Rollback",
    "Turn",
    "Versions",
    "path",
    "prompt_ids",
    "tail_ids",
]

type Ids = array[int]
type Logprobs = array[float]
type Versions = tuple[tuple[int, str], ...]

_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One committed call. `input_ids` continue the parent's prompt and answer, or are the whole prompt of a root."""

    call_id: CallId
    parent: "Turn | None"
    reason: Break
    input_ids: Ids
    answer_ids: Ids
    logprobs: Logprobs | None
    versions: Versions  # (offset in the answer, weight version from there on)
    prompt_len: int  # ids of the whole prompt
    message_count: int  # messages of the whole conversation, with the answer
    root: bytes  # key of the tools
    system: bytes  # key of the system messages at the start (key.system_key)
    system_count: int
    keys: bytes  # of the messages that the input ids say and of the answer, joined
    exact: bytes  # of those messages without the answer, to the letter
    reasoning: int  # hash of the answer's, to tell equal answers apart
    prompt_key: bytes  # of the whole conversation before the answer
    key: bytes  # … and with it
    auxiliary: bool

    @property
    def answer_key(self) -> bytes:
        return self.keys[-KEY_BYTES:]


class Rollback(NamedTuple):
    """The harness rewrote the answer of `turn`: `turn.input_ids` are kept, then `rewritten` unsampled, then `new`."""

    turn: Turn
    rewritten: Message
    new: tuple[Message, ...]


class Match(NamedTuple):
    """Where a call belongs. `new` is every message after the parent's answer (all of them without a parent).

    The input ids to commit are what `new` adds to the parent's path: `ready` when that is known already (a retry); else
    the kept ids, the rewritten message and the new ones of `rollback`; else the rendering of `new`.
    """

    parent: Turn | None
    new: tuple[Message, ...]
    reason: Break
    messages: tuple[Message, ...]
    root: bytes
    keys: tuple[bytes, ...]  # of `messages`
    chain: tuple[bytes, ...]  # keys of the conversations that end in each of `messages`
    rollback: Rollback | None = None
    ready: Ids | None = None

    @property
    def start(self) -> int:
        """Position in the conversation of the first message of `new`."""
        return len(self.messages) - len(self.new)

    @property
    def prompt_key(self) -> bytes:
        return self.chain[-1] if self.chain else b""

    def fork(self, reason: Break) -> "Match":
        """The same call as a new root, e.g. because the renderer could not continue the parent."""
        return self._replace(parent=None, new=self.messages, reason=reason, rollback=None, ready=None)


class Graph:
    """The tree of one rollout attempt; `breaks` counts how its calls came to their places.

    `compare_ids=False` also matches histories whose tool call ids the harness made anew.
    """

    def __init__(self, *, compare_ids: bool = True) -> None:
        self.turns: list[Turn] = []
        self.breaks: Counter[Break] = Counter()
        self._compare_ids = compare_ids
        self._answers: dict[bytes, tuple[Turn, ...]] = {}  # by `key`
        self._prompts: dict[bytes, tuple[Turn, ...]] = {}  # by `prompt_key`
        self._picked: deque[Turn] = deque(maxlen=_IN_FLIGHT)  # parents of the newest calls, answered or not

    def match(self, tools_root: bytes, messages: Sequence[Message], keys: Sequence[bytes] | None = None) -> Match:
        """Find where a call with these messages belongs. `keys` are their `message_key`s, if they are known already."""
        whole = tuple(messages)
        keys = tuple(self._key(message) for message in whole) if keys is None else tuple(keys)
        chain = tuple(accumulate(keys, extend, initial=b""))[1:]
        asked = Match(None, whole, Break.ROOT, whole, tools_root, keys, chain)
        last = _last_assistant(whole)
        if last < 0 or (not self.turns and last + 1 < len(whole)):
            return self._retried(asked)
        if last + 1 == len(whole):
            return self._retried(asked.fork(Break.PREFILL))
        parent = self._pick(chain[last], tools_root, whole[last])
        if parent is not None:
            broke = Break.BRANCH if self._continued(parent) else Break.APPEND
            return self._retried(asked._replace(parent=parent, new=whole[last + 1 :], reason=broke))
        turn = self._asked_before(chain[last - 1], tools_root) if last else None
        if turn is not None and turn.parent is not None:  # the answer of a root leaves nothing to go back to
            rollback = Rollback(turn, whole[last], whole[last + 1 :])
            new = whole[turn.parent.message_count :]
            return self._retried(asked._replace(parent=turn.parent, new=new, reason=Break.ROLLBACK, rollback=rollback))
        return self._retried(asked.fork(self._why(asked, last)))

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
        """Add an answered call; raises ValueError when `call_id` was committed before.

        With a `reason` that forks, `input_ids` are the whole prompt and the parent of `match` is let go.
        """
        if any(turn.call_id == call_id for turn in self.turns):
            raise ValueError(f"call {call_id} is committed already")
        if reason is not None:
            match = match.fork(reason) if reason.forks else match._replace(reason=reason)
        parent = match.parent
        answer_key = self._key(answer)
        lead = parent.system_count if parent else _leading_system(match.messages)
        turn = Turn(
            call_id=call_id,
            parent=parent,
            reason=match.reason,
            input_ids=input_ids,
            answer_ids=answer_ids,
            logprobs=logprobs,
            versions=versions,
            prompt_len=len(input_ids) + (parent.prompt_len + len(parent.answer_ids) if parent else 0),
            message_count=len(match.messages) + 1,
            root=match.root,
            system=parent.system if parent else match.chain[lead - 1] if lead else b"",
            system_count=lead,
            keys=b"".join((*match.keys[match.start :], answer_key)),
            exact=exact_key(match.new),
            reasoning=hash(answer.reasoning),
            prompt_key=match.prompt_key,
            key=extend(match.prompt_key, answer_key),
            auxiliary=auxiliary,
        )
        self.turns.append(turn)
        self.breaks[turn.reason] += 1
        self._answers[turn.key] = (*self._answers.get(turn.key, ()), turn)
        self._prompts[turn.prompt_key] = (*self._prompts.get(turn.prompt_key, ()), turn)
        return turn

    def leaves(self) -> list[Turn]:
        """Turns that nothing continues, in the order they were committed."""
        parents = {turn.parent for turn in self.turns}
        return [turn for turn in self.turns if turn not in parents]

    def paths(self) -> list[list[Turn]]:
        """One path, root first, for each leaf."""
        return [path(leaf) for leaf in self.leaves()]

    def _key(self, message: Message) -> bytes:
        return message_key(message, compare_ids=self._compare_ids)

    def _pick(self, key: bytes, root: bytes, echo: Message) -> Turn | None:
        """Of the turns that gave this answer: the same reasoning first, then a tip, then the latest.

        So two sub-agents that were asked the same and answered the same each go on from their own answer.
        """
        turns = [turn for turn in self._answers.get(key, ()) if turn.root == root]
        if not turns:
            return None
        turns.reverse()
        reasoning = hash(echo.reasoning)
        best = turns[0]
        if len(turns) > 1:
            taken = {*self._picked, *(turn.parent for turn in self.turns)}
            best = min(turns, key=lambda turn: (turn.reasoning != reasoning, turn in taken))
        self._picked.append(best)
        return best

    def _continued(self, parent: Turn) -> bool:
        return any(turn.parent is parent and not turn.auxiliary for turn in self.turns)

    def _asked_before(self, prompt_key: bytes, root: bytes) -> Turn | None:
        turns = [turn for turn in self._prompts.get(prompt_key, ()) if turn.root == root]
        return turns[-1] if turns else None

    def _retried(self, match: Match) -> Match:
        for turn in self._prompts.get(match.prompt_key, ()):
            if turn.root == match.root and turn.parent is match.parent:
                ready = turn.input_ids if turn.exact == exact_key(match.new) else None
                return match._replace(reason=Break.RETRY, ready=ready)
        return match

    def _why(self, asked: Match, last: int) -> Break:
        """What the harness changed, as far as the tree can tell: `last` is the assistant message that nobody gave."""
        keys, chain = asked.keys, asked.chain
        if chain[last] in self._answers:
            return Break.TOOLS_CHANGED
        body = b"".join(keys[_leading_system(asked.messages) : last + 1])
        for turn in reversed(self.turns):
            if turn.answer_key == keys[last] and _body(turn) == body:
                return Break.SYSTEM_CHANGED
        spoken = [i for i, message in enumerate(asked.messages) if message.role == "assistant"]
        ours = [i for i in spoken if any(turn.root == asked.root for turn in self._answers.get(chain[i], ()))]
        first = next(i for i in spoken if not ours or i > ours[-1])
        replaced = first > 0 and self._asked_before(chain[first - 1], asked.root) is not None
        if replaced or any(turn.answer_key == keys[first] for turn in self.turns):
            return Break.HISTORY_REWRITE
        return Break.FOREIGN if ours else Break.NO_MATCH


def path(turn: Turn | None) -> list[Turn]:
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
    for turn in path(parent):
        joined += turn.input_ids
        joined += turn.answer_ids
    joined += input_ids
    return joined


def tail_ids(turn: Turn, n: int) -> Ids:
    """The last `n` ids of the prompt and answer of `turn` (all of them when there are fewer)."""
    pieces: list[Ids] = []
    for ids in (ids for at in ancestors(turn) for ids in (at.answer_ids, at.input_ids)):
        if n <= 0:
            break
        pieces.append(ids[-n:])
        n -= len(pieces[-1])
    tail: Ids = array("i")
    for piece in reversed(pieces):
        tail += piece
    return tail


def _last_assistant(messages: Sequence[Message]) -> int:
    return max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)


def _leading_system(messages: Sequence[Message]) -> int:
    return next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))


def _body(turn: Turn) -> bytes:
    """Keys of the conversation of `turn` without the system messages it starts with."""
    return b"".join(at.keys for at in path(turn))[turn.system_count * KEY_BYTES :]
