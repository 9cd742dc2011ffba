"""Qwen3's form, by the `renderers` library. Ids are looked up by name, so a cut vocabulary works unchanged.

`enable_thinking` None or True puts no think block into the generation prompt (the model may open one itself); False
puts the empty block there, as Qwen3's own template does.
"""

from collections.abc import Sequence

from renderers import Qwen3RendererConfig, ToolCallParseStatus
from renderers.qwen3 import Qwen3Renderer

from openforge.tokens.graph import Break
from openforge.tokens.message import Message, Tool
from proxy_addons.render.base import Parsed, call_of, chat_form, guarded_schemas, write_calls
from proxy_addons.render.tok import Tok

NAMES = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<tool_response>",
         "</tool_response>", "<think>", "</think>")  # fmt: skip


class Qwen3:
    name = "qwen3"

    def __init__(self, tok: Tok, enable_thinking: bool | None, vocab_size: int) -> None:
        thinking = enable_thinking is not False
        # "all": with the library's default a new user message strips old reasoning, and no bridge would be possible
        self._inner = Qwen3Renderer(tok, Qwen3RendererConfig(thinking_retention="all", enable_thinking=thinking))
        self.tok = tok
        self.stop_ids: tuple[int, ...] = tuple(self._inner.get_stop_token_ids())
        self.vocab_size = vocab_size

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        chat = [chat_form(self.tok, message) for message in messages]
        schemas = guarded_schemas(self.tok, tools) or None
        return list(self._inner.render_ids(chat, tools=schemas, add_generation_prompt=True))

    def bridge(
        self, tail: Sequence[int], answer: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | Break:
        chat = [chat_form(self.tok, message) for message in new]
        before = [*tail, *answer]
        bridged = self._inner.bridge_to_next_turn(list(tail), list(answer), chat)
        if bridged is None:
            return Break.BRIDGE_REFUSED
        ids = list(bridged.token_ids)
        return ids[len(before) :] if ids[: len(before)] == before else Break.BRIDGE_TRIMMED

    def parse(self, answer: Sequence[int], tools: Sequence[Tool], tail: Sequence[int]) -> Parsed:
        ids = list(answer)
        try:
            parsed = self._inner.parse_response(ids, prompt_ids=list(tail))
        except (ValueError, RecursionError):  # the library reads a call's JSON without a depth limit
            return Parsed(Message("assistant", self._raw(ids)), malformed=True)
        reasoning = parsed.reasoning_content or ""
        found = [
            call_of(call.name, call.arguments) if call.status is ToolCallParseStatus.OK else None
            for call in parsed.tool_calls
        ]
        calls = tuple(call for call in found if call is not None)
        if len(calls) == len(found):
            return Parsed(Message("assistant", parsed.content, reasoning, calls), parsed.reasoning_complete)
        raw = self._raw(ids)
        text = raw.partition("</think>")[2] if reasoning and "</think>" in raw else raw
        return Parsed(Message("assistant", text.strip(), reasoning), malformed=True)

    def encode_answer(self, message: Message) -> list[int]:
        think = f"<think>\n{self.tok.guard(message.reasoning)}\n</think>\n\n" if message.reasoning else ""
        return self.tok.encode(f"{think}{write_calls(self.tok, message.text, message.tool_calls)}<|im_end|>")

    def _raw(self, ids: list[int]) -> str:
        return self.tok.decode([token for token in ids if token not in self.stop_ids])
