"""Requests as real harnesses write them, and answers of every kind."""

from typing import Any

from openforge.tokens.message import Message, ToolCall
from proxy_addons.dialects import DIALECTS
from proxy_addons.dialects.base import Answer

CHAT, RESPONSES = DIALECTS
TEXT = Answer(Message("assistant", "hé 你\n", "hm, well"), "stop", 10, 4)
CALLS = Answer(
    Message(
        "assistant",
        "on it",
        "",
        (
            ToolCall("call1", "bash", '{"cmd": "ls"}'),
            ToolCall("call2", "files.read", '{"path": "é"}'),
            ToolCall("call3", "apply_patch", '{"input": "*** Begin\\n"}'),
        ),
    ),
    "tool_calls",
    10,
    4,
)
CUT = Answer(Message("assistant", "half an ans"), "length", 10, 4)
REFUSAL = Answer(Message("assistant", "I will not"), "refusal", 10, 4)
ANSWERS = {"text": TEXT, "calls": CALLS, "cut": CUT, "refusal": REFUSAL}


CHAT_REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "be good"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": None},
        {"role": "assistant", "content": "x", "reasoning": "why", "tool_calls": [], "unknown": 1},
        {"role": "user", "content": "go"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "bash", "description": "run", "parameters": {"type": "object"}}},
        {"type": "custom", "custom": {"name": "apply_patch", "description": "patch"}},
        {"type": "web_search_preview"},
    ],
    "stream": True,
    "service_tier": "standard",
    "tool_choice": "auto",
    "max_completion_tokens": 5.0,
    "temperature": 0.2,
    "top_logprobs": None,
}


def part(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "text": text}


RESPONSES_REQUEST: dict[str, Any] = {
    "model": "m",
    "input": [
        {"type": "message", "role": "developer", "content": [part("input_text", "be good")], "id": "x"},
        {"type": "message", "role": "user", "content": [part("input_text", "a"), part("input_text", "b")]},
        {"type": "reasoning", "summary": [part("summary_text", "why")], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [part("output_text", "on"), part("output_text", " it")]},
        {"type": "function_call", "call_id": "c1", "name": "read", "namespace": "files", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin\n"},
        {"type": "function_call_output", "call_id": "c1", "output": "out"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [part("input_text", "done")]},
        {"role": "user", "content": "go"},
    ],
    "tools": [
        {"type": "function", "name": "bash", "description": "run", "parameters": {"type": "object"}, "strict": False},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {"type": "web_search"},
    ],
    "stream": True,
    "max_output_tokens": 5,
    "reasoning": {"effort": "high"},
    "client_metadata": {"x": 1},
    "include": ["reasoning.encrypted_content"],
}  # fmt: skip
