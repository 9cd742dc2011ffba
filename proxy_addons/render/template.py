"""Any model that has a Jinja chat template: exact continuations by a sentinel, tool calls read from text.

The bridge renders `[user, assistant SENTINEL] + new messages` and takes what follows the sentinel: it must start with
the end token, and the rest is what the template would put between two sampled answers. Tools go into the system text
when the template does not know them.
"""

import json
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openforge.errors import ConfigError
from openforge.tokens.graph import Break
from openforge.tokens.message import Message, Tool, ToolCall
from proxy_addons.render.base import Parsed, call_of, chat_form, guarded_schemas, write_calls
from proxy_addons.render.tok import SENTINEL, Tok

TOOLS_HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
TOOLS_FOOT = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


class Template:
    name = "template"

    def __init__(
        self,
        tok: Tok,
        template: str,
        enable_thinking: bool | None,
        vocab_size: int,
        *,
        bos_token: str = "",
        stop_ids: tuple[int, ...] = (),
    ) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(template)
        except TemplateError as problem:
            raise ConfigError(f"the chat template cannot be read: {problem}") from problem
        self._variables: dict[str, Any] = {"eos_token": tok.eos_token, "bos_token": bos_token}
        if enable_thinking is not None:
            self._variables["enable_thinking"] = enable_thinking
        self._knows_tools = "tools" in template
        self.tok = tok
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((tok.eos_token_id, *stop_ids)))
        self.vocab_size = vocab_size
        if not self._after([Message("user", "y")]).startswith(tok.eos_token):
            raise ConfigError(
                f"the chat template does not close an assistant turn with {tok.eos_token!r}: no exact continuation",
                hint="check eos_token in tokenizer_config.json",
            )

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return self.tok.encode(self.text(messages, tools))

    def text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The guarded text of a conversation with the generation prompt; ConfigError when the template refuses it."""
        chat = [self._chat(message) for message in messages]
        schemas = guarded_schemas(self.tok, tools)
        if schemas and not self._knows_tools:
            head = TOOLS_HEAD + "".join("\n" + _to_json(schema) for schema in schemas) + TOOLS_FOOT
            if chat and chat[0]["role"] == "system":
                chat[0]["content"] += "\n\n" + self.tok.guard(head)
            else:
                chat.insert(0, {"role": "system", "content": self.tok.guard(head)})
        return self._render(chat, schemas if self._knows_tools else None)

    def bridge(
        self, tail: Sequence[int], answer: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | Break:
        if not new or any(message.role == "assistant" for message in new):
            return Break.BRIDGE_REFUSED
        after = self._after(new)
        eos = self.tok.eos_token
        if not after.startswith(eos) or any(token in self.stop_ids for token in answer[:-1]):
            return Break.BRIDGE_REFUSED
        closed = bool(answer) and answer[-1] in self.stop_ids
        return ([] if closed else [self.tok.eos_token_id]) + self.tok.encode(after[len(eos) :])

    def parse(self, answer: Sequence[int], tools: Sequence[Tool], tail: Sequence[int]) -> Parsed:
        raw = self.tok.decode([token for token in answer if token not in self.stop_ids])
        reasoning, text = "", raw
        if raw.lstrip().startswith("<think>") or self.tok.decode(list(tail)).rstrip().endswith("<think>"):
            reasoning, closed, text = raw.lstrip().removeprefix("<think>").partition("</think>")
            reasoning = reasoning.strip()
            if not closed:
                return Parsed(Message("assistant", "", reasoning), complete=False)
        head, *blocks = text.split("<tool_call>")
        calls = [_read_call(block) for block in blocks]
        read = tuple(call for call in calls if call is not None)
        if len(read) < len(calls):
            return Parsed(Message("assistant", text.strip(), reasoning), malformed=True)
        return Parsed(Message("assistant", head.strip(), reasoning, read))

    def encode_answer(self, message: Message) -> list[int]:
        think = f"<think>\n{self.tok.guard(message.reasoning)}\n</think>\n\n" if message.reasoning else ""
        text = f"{think}{write_calls(self.tok, message.text, message.tool_calls)}"
        return [*self.tok.encode(text), self.tok.eos_token_id]

    def _after(self, new: Sequence[Message]) -> str:
        start = [{"role": "user", "content": "x"}, {"role": "assistant", "content": SENTINEL}]
        return self._render([*start, *map(self._chat, new)], None).partition(SENTINEL)[2]

    def _render(self, chat: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        try:
            return self._template.render(
                messages=chat, tools=tools or None, add_generation_prompt=True, **self._variables
            )
        except (TemplateError, TypeError) as problem:
            raise ConfigError(f"the chat template refuses this conversation: {problem}") from problem

    def _chat(self, message: Message) -> dict[str, Any]:
        chat = chat_form(self.tok, message, parse_arguments=True)  # several templates walk over the arguments
        if message.tool_calls and not self._knows_tools:
            chat["content"] = write_calls(self.tok, message.text, message.tool_calls)
            del chat["tool_calls"]
        return chat


def _read_call(block: str) -> ToolCall | None:
    raw, closed, _ = block.partition("</tool_call>")
    try:
        value = json.loads(raw) if closed else None
    except (ValueError, RecursionError):
        return None
    return call_of(value.get("name"), value.get("arguments", {})) if isinstance(value, dict) else None


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **{key: options[key] for key in ("indent",) if key in options})


def _raise(message: str) -> None:
    raise TemplateError(message)
