"""A harness, a renderer and a policy in a few lines: what the recorder does with the graph, on plain integers."""

from array import array
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from openforge.ids import CallId
from openforge.tokens.graph import Graph, Ids, Match, Turn
from openforge.tokens.key import root_key
from openforge.tokens.message import Message, Tool, ToolCall

GENERATE = 1  # the generation prompt
END = 2  # the end of a message


def encode(message: Message) -> list[int]:
    """A message as ids; not what the policy samples for the same text."""
    calls = "".join(f"{call.name}{call.arguments}" for call in message.tool_calls)
    return [10 + ord(message.role[0]), *(200 + ord(c) % 500 for c in message.text + calls), END]


class Talk:
    """One rollout. `ask` is one call, from the harness's messages to the committed turn."""

    def __init__(self, **options: Any) -> None:
        self.graph = Graph(**options)
        self.rendered = 0  # messages turned into ids, to see what is never rendered twice
        self.conversations: dict[Turn, list[Message]] = {}
        self._ids = count(1)

    def match(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Match:
        return self.graph.match(root_key(tools), messages)

    def input_ids(self, match: Match) -> Ids:
        if match.ready is not None:
            return match.ready
        if match.rollback:
            turn, rewritten, new = match.rollback
            return turn.input_ids + array("i", encode(rewritten)) + self.render(new)
        return self.render(match.new)

    def render(self, messages: Sequence[Message]) -> Ids:
        self.rendered += len(messages)
        return array("i", [i for message in messages for i in encode(message)] + [GENERATE])

    def ask(
        self,
        messages: Sequence[Message],
        answer: str | Message = "ok",
        *,
        tools: Sequence[Tool] = (),
        match: Match | None = None,
        ids: list[int] | None = None,
        logprobs: list[float] | None = None,
        **options: Any,
    ) -> Turn:
        match = match or self.match(messages, tools)
        said = Message("assistant", answer) if isinstance(answer, str) else answer
        n = next(self._ids)
        sampled = ids if ids is not None else [1000 * n + i for i in range(len(said.text) + 1)]
        turn = self.graph.commit(
            match,
            call_id=CallId(f"c{n}"),
            input_ids=options.pop("input_ids", None) or self.input_ids(match),
            answer=said,
            answer_ids=array("i", sampled),
            logprobs=array("f", [-0.5] * len(sampled) if logprobs is None else logprobs),
            **options,
        )
        self.conversations[turn] = [*match.messages, said]
        return turn

    def after(self, turn: Turn, *new: Message) -> list[Message]:
        """What a well-behaved harness sends next: the conversation up to the answer of `turn`, and new messages."""
        return [*self.conversations[turn], *new]


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture
def make_talk() -> type[Talk]:
    return Talk


@pytest.fixture
def say() -> Any:
    """Short names for messages: say.user("x"), say.call("bash", id="c1")."""

    class Say:
        GENERATE, encode = GENERATE, staticmethod(encode)

        @staticmethod
        def system(text: str) -> Message:
            return Message("system", text)

        @staticmethod
        def user(text: str) -> Message:
            return Message("user", text)

        @staticmethod
        def tool(text: str, id: str = "") -> Message:
            return Message("tool", text, tool_call_id=id)

        @staticmethod
        def answer(text: str = "", **fields: Any) -> Message:
            return Message("assistant", text, **fields)

        @staticmethod
        def call(name: str = "bash", id: str = "call_1", arguments: str = "{}") -> Message:
            return Message("assistant", tool_calls=(ToolCall(id, name, arguments),))

    return Say
