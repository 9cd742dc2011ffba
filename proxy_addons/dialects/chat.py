"""OpenAI Chat Completions (`/v1/chat/completions`), with the two spellings of reasoning that open servers use."""

import time
from collections.abc import Mapping
from typing import Any, cast

import orjson

from openforge.tokens.message import Message, Role, Tool, ToolCall
from proxy_addons.dialects import base
from proxy_addons.dialects.base import Answer, Finish, Request, ToolOrigin, WireError, bad

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
TEXTS = ("reasoning_content", "content", "refusal")
FINISHES = ("stop", "tool_calls", "length", "content_filter")


class Chat:
    name = "chat"
    path = "/chat/completions"
    terminal: tuple[bytes, ...] = (b"data: [DONE]", b"data:[DONE]")

    def read_request(self, body: bytes) -> Request:
        wire = base.as_object(base.parse_json(body), "the body")
        items = base.as_list(wire.get("messages"), "messages")
        if not items:
            raise bad("messages must be a non-empty list")
        raws = tuple(base.dumps(item) for item in items)
        numbered = enumerate(zip(raws, items, strict=True))
        read = [_KNOWN.read(raw, item, f"messages[{index}]") for index, (raw, item) in numbered]
        tools, origins, dropped = _read_tools(wire)
        limit = "max_completion_tokens" if wire.get("max_completion_tokens") is not None else "max_tokens"
        return Request(
            messages=tuple(message for message, _ in read),
            tools=tools,
            stream=wire.get("stream") is True,
            model=base.as_text(wire.get("model"), "model"),
            max_tokens=base.as_count(wire.get(limit), limit),
            sampling=base.asked_sampling(wire),
            history_items=len(items),
            dropped_tools=dropped,
            n=base.as_count(wire.get("n"), "n") or 1,
            origins=origins,
            wire=wire,
            raws=raws,
            keys=tuple(key for _, key in read),
        )

    def read_answer(self, content_type: str, body: bytes) -> Answer:
        if "event-stream" in content_type:
            return _read_stream(body)
        wire = base.as_object(base.parse_json(body), "the answer")
        choices = base.as_list(wire.get("choices"), "choices")
        if not choices:
            raise base.incomplete("the provider's answer has no choices")
        choice = base.as_object(choices[0], "choices[0]")
        message = base.as_object(choice.get("message"), "choices[0].message")
        return _answer(message, choice.get("finish_reason"), wire.get("usage"))

    def write_answer(self, answer: Answer, request: Request, call_id: str) -> bytes:
        choice = {"index": 0, "message": _message(answer, request), "finish_reason": _finish(answer)}
        usage = _usage(answer)
        return orjson.dumps({**_head(request, call_id, "chat.completion"), "choices": [choice], "usage": usage})

    def write_stream(self, answer: Answer, request: Request, call_id: str) -> bytes:
        head = _head(request, call_id, "chat.completion.chunk")
        message = _message(answer, request)
        usage = _usage(answer)
        options = request.wire.get("stream_options")
        own_chunk = isinstance(options, dict) and bool(options.get("include_usage"))

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({key: message[key]}) for key in TEXTS if message.get(key)]
        calls = message.get("tool_calls", ())
        events += [chunk({"tool_calls": [{"index": index, **call}]}) for index, call in enumerate(calls)]
        last = chunk({}, _finish(answer))
        if own_chunk:
            events += [last, {**head, "choices": [], "usage": usage}]
        else:
            events.append({**last, "usage": usage} if usage else last)
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"

    def write_error(self, error: WireError) -> bytes:
        return base.openai_error(error)


def _read_tools(wire: dict[str, Any]) -> tuple[tuple[Tool, ...], dict[str, ToolOrigin], tuple[str, ...]]:
    tools: list[Tool] = []
    dropped: list[str] = []
    origins: dict[str, ToolOrigin] = {}
    for index, value in enumerate(base.as_list(wire.get("tools"), "tools")):
        item = base.as_object(value, f"tools[{index}]")
        kind = base.as_text(item.get("type"), f"tools[{index}].type") or "function"
        if kind not in ("function", "custom"):
            dropped.append(kind)
            continue
        inner = base.as_object(item.get(kind, item), f"tools[{index}].{kind}")
        name = base.as_text(inner.get("name"), f"tools[{index}].name")
        if not name:
            raise bad(f"tools[{index}] has no name")
        parameters = inner.get("parameters") if kind == "function" else base.CUSTOM_PARAMETERS
        tools.append(
            Tool(
                name,
                base.as_text(inner.get("description"), f"tools[{index}].description"),
                base.as_object(parameters or {}, f"tools[{index}].parameters"),
            )
        )
        if kind == "custom":
            origins[name] = ToolOrigin(name, custom=True)
    return tuple(tools), origins, tuple(dropped)


def _read_message(value: Any, where: str) -> Message:
    item = base.as_object(value, where)
    role = ROLES.get(base.as_text(item.get("role"), where, ".role"))
    if role is None:
        raise bad(f"{where}.role is {item.get('role')!r}")
    text = base.join_parts(item.get("content"), where, ".content", "" if role == "assistant" else "\n")
    if role == "tool":
        return Message(role, text, tool_call_id=base.as_text(item.get("tool_call_id"), where, ".tool_call_id"))
    if role != "assistant":
        return Message(role, text)
    refusal = base.as_text(item.get("refusal"), where, ".refusal")
    return Message(role, text or refusal, _reasoning(item), _read_calls(item, where))


_KNOWN = base.Known(_read_message)


def _reasoning(item: dict[str, Any]) -> str:
    found = item.get("reasoning_content") or item.get("reasoning")
    return found if isinstance(found, str) else ""


def _read_calls(item: dict[str, Any], where: str) -> tuple[ToolCall, ...]:
    calls = []
    for index, value in enumerate(base.as_list(item.get("tool_calls"), f"{where}.tool_calls")):
        spot = f"{where}.tool_calls[{index}]"
        call = base.as_object(value, spot)
        call_id = base.as_text(call.get("id"), spot, ".id")
        if call.get("type") == "custom":
            inner = base.as_object(call.get("custom"), f"{spot}.custom")
            arguments = base.custom_arguments(base.as_text(inner.get("input"), spot, ".input"))
        else:
            inner = base.as_object(call.get("function"), f"{spot}.function")
            arguments = base.as_arguments(inner.get("arguments"), f"{spot}.arguments")
        calls.append(ToolCall(call_id, base.as_text(inner.get("name"), spot, ".name"), arguments))
    if item.get("function_call") is not None:  # the form before tools; still sent by old clients
        inner = base.as_object(item["function_call"], f"{where}.function_call")
        name = base.as_text(inner.get("name"), where, ".function_call.name")
        calls.append(ToolCall("", name, base.as_arguments(inner.get("arguments"), where)))
    return tuple(calls)


def _answer(item: dict[str, Any], finish: Any, usage: Any) -> Answer:
    message = _read_message({**item, "role": "assistant"}, "message")
    kind: Finish = cast(Finish, finish) if finish in FINISHES else "tool_calls" if message.tool_calls else "stop"
    if item.get("refusal"):
        kind = "refusal"
    counts = usage if isinstance(usage, dict) else {}
    return Answer(message, kind, base.whole(counts.get("prompt_tokens")), base.whole(counts.get("completion_tokens")))


def _read_stream(body: bytes) -> Answer:
    texts = {"content": "", "reasoning_content": "", "reasoning": "", "refusal": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = None, None
    for event in base.read_events(body):
        if event.get("error"):
            raise base.incomplete(f"the provider's stream ends with an error: {event['error']}")
        usage = event.get("usage") or usage
        for choice in base.as_list(event.get("choices"), "choices"):
            if base.as_object(choice, "choice").get("index", 0) != 0:
                continue
            finish = choice.get("finish_reason") or finish
            delta = base.as_object(choice.get("delta") or {}, "delta")
            for key in texts:
                texts[key] += base.as_text(delta.get(key), key)
            for part in base.as_list(delta.get("tool_calls"), "tool_calls"):
                _add_call(calls, base.as_object(part, "tool_call"))
    if finish is None:
        raise base.incomplete("the provider's stream ended without a finish reason")
    return _answer({**texts, "tool_calls": [calls[index] for index in sorted(calls)]}, finish, usage)


def _add_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    index = base.whole(part.get("index")) or 0
    kind = "custom" if part.get("type") == "custom" or "custom" in part else "function"
    call = calls.setdefault(index, {"id": "", "type": kind, kind: {"name": "", "arguments": "", "input": ""}})
    call["id"] = call["id"] or base.as_text(part.get("id"), "tool_call.id")
    inner = base.as_object(part.get(kind) or {}, "tool_call")
    for key in ("name", "arguments", "input"):
        call.setdefault(kind, {"name": "", "arguments": "", "input": ""})[key] += base.as_text(inner.get(key), key)


def _head(request: Request, call_id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{call_id}", "object": kind, "created": int(time.time()), "model": request.model}


def _message(answer: Answer, request: Request) -> dict[str, Any]:
    refused = answer.finish == "refusal"
    message: dict[str, Any] = {"role": "assistant", "content": None if refused else answer.message.text or None}
    if refused:
        message["refusal"] = answer.message.text
    if answer.message.reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.tool_calls:
        message["tool_calls"] = [_call(call, request.origins) for call in answer.message.tool_calls]
    return message


def _call(call: ToolCall, origins: Mapping[str, ToolOrigin]) -> dict[str, Any]:
    if call.name in origins and origins[call.name].custom:
        inner = {"name": call.name, "input": base.custom_input(call.arguments)}
        return {"id": call.id, "type": "custom", "custom": inner}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(answer: Answer) -> str:
    return "stop" if answer.finish == "refusal" else answer.finish


def _usage(answer: Answer) -> dict[str, int] | None:
    if answer.prompt_tokens is None or answer.completion_tokens is None:
        return None
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
