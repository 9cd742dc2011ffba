"""From a request to the ids that a model reads: where it belongs in the rollout's tree, and what it adds there.

The prompt of a continued conversation is never tokenised again: the ids of parent and answer stay as they were sampled,
and only what is new is encoded. Whole renders (first calls and forks) run in a thread and are counted.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from openforge.errors import ConfigError
from openforge.tokens.graph import Break, Ids, Match, Turn, tail_ids
from openforge.tokens.key import root_key
from openforge.tokens.message import Message, Tool
from proxy_addons.dialects.base import Request, WireError
from proxy_addons.render.base import Renderer
from proxy_addons.rollouts import Rollout

TAIL = 16  # ids of the prompt's end that tell a renderer how the answer began
_INLINE = 24_000  # characters of new text; more is encoded in a thread, so that no other call waits for it


class Prompt(NamedTuple):
    """`input_ids` continue the path of `match.parent`; `length` counts the whole prompt."""

    match: Match
    input_ids: Ids
    length: int

    def tail(self) -> list[int]:
        ids = self.input_ids[-TAIL:]
        parent = self.match.parent
        if parent is not None and len(ids) < TAIL:
            ids = tail_ids(parent, TAIL - len(ids)) + ids
        return ids.tolist()


class Prompts:
    def __init__(self, renderer: Renderer | None) -> None:
        self._renderer = renderer
        # one thread: rendering is half Python, and several such threads would keep the event loop from its turn
        self._thread = ThreadPoolExecutor(1, "render")
        self.full_renders = 0
        self.bridges = 0

    async def prepare(self, rollout: Rollout, request: Request) -> Prompt:
        """Raises WireError 400 when the model's template has no form for this conversation."""
        match = rollout.graph.match(root_key(request.tools), request.messages, request.keys)
        renderer = self._renderer
        if renderer is None:
            return Prompt(match, array("i"), 0)
        if match.ready is not None:
            return _prompt(match, match.ready)
        try:
            if match.rollback is not None or match.parent is not None:
                ids = await self._continue(renderer, match, request.tools)
                if not isinstance(ids, Break):
                    return _prompt(match, array("i", ids))
                match = match.fork(ids)
            self.full_renders += 1
            whole = await self._apart(renderer.first, match.messages, request.tools)
        except ConfigError as problem:
            raise WireError(400, "unsupported_conversation", problem.summary) from problem
        return _prompt(match, array("i", whole))

    async def _apart[**P, R](self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    async def _continue(self, renderer: Renderer, match: Match, tools: Sequence[Tool]) -> list[int] | Break:
        before: list[int] = []
        if match.rollback is not None:
            turn, rewritten, new = match.rollback
            answer = renderer.encode_answer(rewritten)
            before = [*turn.input_ids, *answer]
            tail = _prompt_tail(turn)
        else:
            assert match.parent is not None
            new = match.new
            answer = match.parent.answer_ids.tolist()
            tail = _prompt_tail(match.parent)
        if sum(_size(message) for message in new) > _INLINE:
            added = await self._apart(renderer.bridge, tail, answer, new, tools)
        else:
            added = renderer.bridge(tail, answer, new, tools)
        if isinstance(added, Break):
            return added
        self.bridges += 1
        return before + added


def _prompt(match: Match, ids: Ids) -> Prompt:
    parent = match.parent
    return Prompt(match, ids, len(ids) + (parent.prompt_len + len(parent.answer_ids) if parent else 0))


def _prompt_tail(turn: Turn) -> list[int]:
    """The end of the prompt that `turn` answered."""
    ids = turn.input_ids[-TAIL:]
    if len(ids) < TAIL and turn.parent is not None:
        ids = tail_ids(turn.parent, TAIL - len(ids)) + ids
    return ids.tolist()


def _size(message: Message) -> int:
    return len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
