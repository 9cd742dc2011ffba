"""What the recorder asks of a model family: prompts as ids, continuations as ids, ids as an answer.

Renderers are pure and thread-safe: `first` runs in a thread, the rest on the event loop.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openforge.tokens.graph import Break
from openforge.tokens.message import Message, Tool, ToolCall
from proxy_addons.render.tok import Tok


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer as a message. `complete` is False when reasoning was cut off; `malformed` when a tool call could not be
    read, in which case the message is the text as the model wrote it and calls nothing."""

    message: Message
    complete: bool = True
    malformed: bool = False


class Renderer(Protocol):
    """Text ↔ ids for one model folder."""

    name: str
    tok: Tok
    stop_ids: tuple[int, ...]
    vocab_size: int

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole prompt, with the generation prompt. Slow (150 ms at 30,000 tokens)."""
        ...

    def bridge(
        self, tail: Sequence[int], answer: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | Break:
        """The ids that follow prompt + answer when `new` comes next. `tail` is the end of that prompt (16 ids are
        enough). A Break says why the sampled ids cannot be continued."""
        ...

    def parse(self, answer: Sequence[int], tools: Sequence[Tool], tail: Sequence[int]) -> Parsed:
        """What the sampled ids say."""
        ...

    def encode_answer(self, message: Message) -> list[int]:
        """The ids that the model would have sampled to say `message`, with the end token."""
        ...


def chat_form(tok: Tok, message: Message, *, parse_arguments: bool = False) -> dict[str, Any]:
    """A message as chat templates want it, its text guarded."""
    out: dict[str, Any] = {"role": message.role, "content": tok.guard(message.text)}
    if message.reasoning:
        out["reasoning_content"] = tok.guard(message.reasoning)
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _function(tok, call, parse_arguments)}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    return out


def _function(tok: Tok, call: ToolCall, parse_arguments: bool) -> dict[str, Any]:
    arguments: Any = tok.guard(call.arguments)
    if parse_arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {"input": arguments}
    return {"name": tok.guard(call.name), "arguments": arguments}


def guarded_schemas(tok: Tok, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as chat templates want them: the function wrapper, in the harness's own key order."""
    return [json.loads(tok.guard(json.dumps(tool.schema(), ensure_ascii=False))) for tool in tools]


def write_calls(tok: Tok, text: str, calls: Sequence[ToolCall]) -> str:
    """Guarded text and calls in the Hermes form that Qwen3 writes."""
    blocks = [tok.guard(text)] if text else []
    for call in calls:
        body = f'{{"name": "{tok.guard(call.name)}", "arguments": {tok.guard(spaced_json(call.arguments))}}}'
        blocks.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(blocks)


def spaced_json(text: str) -> str:
    """JSON with `, ` and `: `, as models write it; anything else is left as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def call_of(name: Any, arguments: Any) -> ToolCall | None:
    """A parsed call, or None when no harness could be told of it (no name, not JSON, broken characters)."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
        if not isinstance(name, str) or not name.encode():
            return None
    except (ValueError, RecursionError):
        return None
    return ToolCall("", name, text)
