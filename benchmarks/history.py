"""Two other ways to come by the next prompt of a conversation, held against the ids that were really sampled from.

From recorded calls: what veRL's continuous tokens make of the same sampled ids and the same tool outputs, and what a
server would ask with that renders anew, by its chat template, the whole history as the harness was told it. Each call
is held alone: a difference does not carry over to the next. Asks no engine.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop import tool_parser
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from openforge.store.connect import query

FORMAT = "hermes"
"""veRL's name for how Qwen3's template writes tool calls."""

_THOUGHT = "<think>\n\n</think>\n\n"  # what Qwen3's template puts before an answer, and leaves out of a history

type Message = dict[str, Any]
type Call = tuple[str, Any]
"""Name and arguments of a tool call; arguments that are no JSON stay text."""


@dataclass(frozen=True)
class Turn:
    """One recorded model call. `added`: messages that came before it since the last answer; `text` and `calls`: the
    answer as the harness was told it."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    added: Sequence[Message]
    text: str
    calls: Sequence[Call]


@dataclass(frozen=True)
class Conversation:
    """Turns of which each continues the one before; `tools` as they stand in the request."""

    turns: Sequence[Turn]
    tools: list[dict[str, Any]]


_CALLS = """
SELECT c.rollout_id, c.call_id, c.break_reason, c.prompt_ids, c.completion_ids, c.request, c.finish_reason
FROM calls c JOIN rollouts r USING (run_id, rollout_id, attempt)
WHERE c.state = 'done' AND NOT coalesce(c.auxiliary, false) AND r.harness = ? ORDER BY c.rollout_id, c.seq"""


def conversations(store_root: Path, run_id: str, harness: str) -> Iterator[Conversation]:
    """Every unbroken conversation of a run's rollouts in `harness`; one that breaks ends at the break."""
    messages: dict[str, list[Message]] = {}
    for row in query(store_root, "SELECT * FROM messages ORDER BY call_id, position", runs=[run_id]):
        messages.setdefault(row["call_id"], []).append(row)
    by_rollout: dict[str, list[dict[str, Any]]] = {}
    for row in query(store_root, _CALLS, [harness], runs=[run_id]):
        by_rollout.setdefault(row["rollout_id"], []).append(row)
    for calls in by_rollout.values():
        whole = [row["break_reason"] == ("append" if place else "root") for place, row in enumerate(calls)]
        kept = calls[: whole.index(False)] if False in whole else calls
        if kept:
            turns = [_turn(row, messages[row["call_id"]]) for row in kept]
            yield Conversation(turns, json.loads(kept[0]["request"]).get("tools") or [])


def _turn(row: dict[str, Any], messages: Sequence[Message]) -> Turn:
    told = [(call["name"], _arguments(call["arguments"])) for call in messages[-1]["tool_calls"] or []]
    added = [{"role": message["role"], "content": message["text"] or ""} for message in messages[:-1]]
    return Turn(row["prompt_ids"], row["completion_ids"], added, messages[-1]["text"] or "", told)


class VerlHistory:
    """veRL's own tokens and parser over a policy's tokenizer (of transformers)."""

    def __init__(self, tokenizer: Any, model_type: str, template_settings: dict[str, bool]) -> None:
        self._builder = create_continuous_token_builder(
            tokenizer, hf_model_type=model_type, chat_template_kwargs=template_settings
        )
        self._parser = tool_parser.ToolParser.get_tool_parser(FORMAT, tokenizer)
        self._thought = list(tokenizer.encode(_THOUGHT, add_special_tokens=False))
        tool_parser.logger.setLevel(logging.CRITICAL)  # a call that it cannot read is counted here

    async def compare(self, conversation: Conversation) -> Counter[str]:
        """How many of: `prompts`, and of those `verl` that differ from what was recorded; of the later ones `rendered`
        that do once their history is rendered anew, and `beyond` that do so with empty thoughts left out of both;
        `answers`, and of those `parsed` that veRL reads as other tool calls."""
        found: Counter[str] = Counter()
        history: list[Message] = []
        before: list[int] = []
        schemas = [OpenAIFunctionToolSchema.model_validate(tool) for tool in conversation.tools]
        for turn in conversation.turns:
            messages = [*history, *turn.added]
            recorded, tools = list(turn.prompt_ids), conversation.tools
            rendered = self._builder.build_initial_tokens(messages, tools=tools)
            grown = rendered
            if history:
                grown = self._builder.merge_context_tokens(history, messages, before, tools=tools).token_ids
            _, calls = await self._parser.extract_tool_calls(list(turn.completion_ids), schemas)
            parsed = [(call.name, _arguments(call.arguments)) for call in calls]
            found += Counter(
                prompts=1,
                verl=int(grown != recorded),
                rendered=int(bool(history) and rendered != recorded),
                beyond=int(bool(history) and without(rendered, self._thought) != without(recorded, self._thought)),
                answers=1,
                parsed=int(parsed != list(turn.calls)),
            )
            history = [*messages, _answer(turn.text, turn.calls)]
            before = recorded + list(turn.completion_ids)
        return found


def without(ids: Sequence[int], part: Sequence[int]) -> list[int]:
    """`ids` with every run of ids that equals `part` left out."""
    kept: list[int] = []
    for token in ids:
        kept.append(token)
        if part and kept[-len(part) :] == list(part):
            del kept[-len(part) :]
    return kept


def _answer(text: str, calls: Sequence[Call]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return message


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
