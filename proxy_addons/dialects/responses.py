"""OpenAI Responses (`/v1/responses`) over HTTP: what Codex speaks.

One canonical assistant message is a run of consecutive `reasoning`, `message` and call items. Tools in a `namespace`
are flattened to `namespace.name` and split again in the answer; free-form (`custom`) tools become `{"input": text}`;
tools that the provider itself would run are left out and named. Conversations kept on the provider's side
(`previous_response_id`) cannot be rebuilt here and are refused.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from openforge.tokens.message import Message, Role, Tool, ToolCall
from proxy_addons.dialects import base
from proxy_addons.dialects.base import Answer, Finish, Request, ToolOrigin, WireError, bad

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")


class Responses:
    name = "responses"
    path = "/responses"
    terminal: tuple[bytes, ...] = tuple(b"response." + end for end in (b"completed", b"incomplete", b"failed"))

    def read_request(self, body: bytes) -> Request:
        wire = base.as_object(base.parse_json(body), "the body")
        for key in ("previous_response_id", "conversation", "prompt"):
            if wire.get(key):
                raise bad(f"{key} is not supported: send the whole conversation as input", code="unsupported_parameter")
        raw = wire.get("input")
        items = [{"role": "user", "content": raw}] if isinstance(raw, str) else base.as_list(raw, "input")
        instructions = base.as_text(wire.get("instructions"), "instructions")
        messages = [Message("system", instructions)] if instructions else []
        messages += read_items(items)
        if not messages:
            raise bad("input must not be empty")
        catalogue = _Catalogue()
        for index, tool in enumerate(base.as_list(wire.get("tools"), "tools")):
            catalogue.add(tool, f"tools[{index}]")
        return Request(
            messages=tuple(messages),
            tools=tuple(catalogue.tools),
            stream=wire.get("stream") is True,
            model=base.as_text(wire.get("model"), "model"),
            max_tokens=base.as_count(wire.get("max_output_tokens"), "max_output_tokens"),
            sampling=base.asked_sampling(wire),
            history_items=len(items),
            dropped_tools=tuple(catalogue.dropped),
            origins=catalogue.origins,
            wire=wire,
            history="input",
            raws=tuple(base.dumps(item) for item in items) if items is raw else (),
        )

    def read_answer(self, content_type: str, body: bytes) -> Answer:
        if "event-stream" not in content_type:
            return _read_response(base.as_object(base.parse_json(body), "the answer"), [])
        done: list[Any] = []
        for event in base.read_events(body):
            kind = event.get("type")
            if kind == "response.output_item.done":
                done.append(event.get("item"))
            elif kind in ("response.completed", "response.incomplete", "response.failed"):
                return _read_response(base.as_object(event.get("response"), "response"), done)
            elif kind == "error":
                raise base.incomplete(f"the provider's stream ends with an error: {event.get('message')}")
        raise base.incomplete("the provider's stream ended without response.completed")

    def write_answer(self, answer: Answer, request: Request, call_id: str) -> bytes:
        return orjson.dumps(_response(answer, request, call_id, _items(answer, request, call_id)))

    def write_stream(self, answer: Answer, request: Request, call_id: str) -> bytes:
        items = _items(answer, request, call_id)
        final = _response(answer, request, call_id, items)
        events = _Events()
        started = {**final, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        events.add("response.created", response=started)
        events.add("response.in_progress", response=started)
        for index, item in enumerate(items):
            _write_item(events, index, item)
        events.add(f"response.{final['status']}", response=final)
        return b"".join(events.blocks)

    def write_error(self, error: WireError) -> bytes:
        return base.openai_error(error)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_items(items: list[Any]) -> list[Message]:
    """Input or output items as messages."""
    messages: list[Message] = []
    turn = _Turn()
    for index, value in enumerate(items):
        where = f"input[{index}]"
        item = base.as_object(value, where)
        kind = base.as_text(item.get("type"), where, ".type") or "message"
        role = ROLES.get(base.as_text(item.get("role"), where, ".role")) if kind == "message" else None
        if kind in CALLS or kind == "reasoning" or role == "assistant":
            turn.add(kind, item, where)
            continue
        messages += turn.close()
        turn = _Turn()
        if kind in OUTPUTS:
            call_id = base.as_text(item.get("call_id"), where, ".call_id")
            output = base.join_parts(item.get("output"), where, ".output")
            messages.append(Message("tool", output, tool_call_id=call_id))
        elif role is not None:
            messages.append(Message(role, base.join_parts(item.get("content"), where, ".content")))
        elif kind == "message":
            raise bad(f"{where}.role is {item.get('role')!r}")
        else:
            raise bad(f"{where} is {kind!r}: this model cannot read it", code="unsupported_content")
    return messages + turn.close()


@dataclass
class _Turn:
    """The assistant message that is being put together from its items."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    started: bool = False

    def add(self, kind: str, item: dict[str, Any], where: str) -> None:
        self.started = True
        if kind == "message":
            self.text += base.join_parts(item.get("content"), where, ".content", "")
        elif kind == "reasoning":
            parts, name = (item["content"], "content") if item.get("content") else (item.get("summary"), "summary")
            self.reasoning += base.join_parts(parts, where, f".{name}")
        else:
            name = base.as_text(item.get("name"), where, ".name")
            namespace = base.as_text(item.get("namespace"), where, ".namespace")
            if kind == "custom_tool_call":
                arguments = base.custom_arguments(base.as_text(item.get("input"), where, ".input"))
            else:
                arguments = base.as_arguments(item.get("arguments"), f"{where}.arguments")
            call_id = base.as_text(item.get("call_id"), where, ".call_id")
            self.calls.append(ToolCall(call_id, f"{namespace}.{name}" if namespace else name, arguments))

    def close(self) -> list[Message]:
        if not self.started:
            return []
        return [Message("assistant", self.text, self.reasoning, tuple(self.calls))]


@dataclass
class _Catalogue:
    """The tools of a request, flattened."""

    tools: list[Tool] = field(default_factory=list)
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def add(self, value: Any, where: str, namespace: str = "") -> None:
        item = base.as_object(value, where)
        kind = base.as_text(item.get("type"), where, ".type") or "function"
        name = base.as_text(item.get("name"), where, ".name")
        if kind == "namespace" and not namespace:
            for index, inner in enumerate(base.as_list(item.get("tools"), f"{where}.tools")):
                self.add(inner, f"{where}.tools[{index}]", name)
            return
        if kind not in ("function", "custom"):
            self.dropped.append(name or kind)
            return
        if not name:
            raise bad(f"{where} has no name")
        flat = f"{namespace}.{name}" if namespace else name
        parameters = base.CUSTOM_PARAMETERS if kind == "custom" else item.get("parameters")
        parameters = base.as_object(parameters or {"type": "object", "properties": {}}, f"{where}.parameters")
        self.tools.append(Tool(flat, base.as_text(item.get("description"), where, ".description"), parameters))
        self.origins[flat] = ToolOrigin(name, namespace, kind == "custom")


def _read_response(wire: dict[str, Any], done: list[Any]) -> Answer:
    status = wire.get("status")
    if status not in (None, "completed", "incomplete"):
        raise base.incomplete(f"the provider's response is {status}: {wire.get('error')}")
    output = base.as_list(wire.get("output"), "output") or done
    messages = read_items([item for item in output if isinstance(item, dict) and _known(item)])
    text = "".join(message.text for message in messages)
    reasoning = "".join(message.reasoning for message in messages)
    calls = tuple(call for message in messages for call in message.tool_calls)
    details = wire.get("incomplete_details")
    finish: Finish = "tool_calls" if calls else "stop"
    if status == "incomplete":
        filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
        finish = "content_filter" if filtered else "length"
    elif not calls and any(part.get("type") == "refusal" for part in _parts(output)):
        finish = "refusal"
    usage = wire.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    message = Message("assistant", text, reasoning, calls)
    return Answer(message, finish, base.whole(counts.get("input_tokens")), base.whole(counts.get("output_tokens")))


def _known(item: dict[str, Any]) -> bool:
    """Work that the provider did by itself (a web search …) is part of its answer, but no message."""
    return item.get("type") in (*CALLS, "reasoning", "message")


def _parts(output: list[Any]) -> list[dict[str, Any]]:
    contents = [item.get("content") for item in output if isinstance(item, dict) and item.get("type") == "message"]
    return [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Events:
    """Named events with their sequence number."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []

    def add(self, kind: str, **fields: Any) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": len(self.blocks), **fields})
        self.blocks.append(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")


def _items(answer: Answer, request: Request, call_id: str) -> list[dict[str, Any]]:
    message = answer.message
    items: list[dict[str, Any]] = []
    if message.reasoning:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": content})
    if message.text or not message.tool_calls:
        part: dict[str, Any] = {"type": "output_text", "text": message.text, "annotations": []}
        if answer.finish == "refusal":
            part = {"type": "refusal", "refusal": message.text}
        head = {"type": "message", "id": f"msg_{call_id}", "role": "assistant", "status": "completed"}
        items.append({**head, "content": [part]})
    for index, call in enumerate(message.tool_calls):
        origin = request.origins.get(call.name, ToolOrigin(call.name))
        item = {"call_id": call.id, "name": origin.name, "status": "completed"}
        if origin.namespace:
            item["namespace"] = origin.namespace
        if origin.custom:
            text = base.custom_input(call.arguments)
            item |= {"type": "custom_tool_call", "id": f"ctc_{call_id}_{index}", "input": text}
        else:
            item |= {"type": "function_call", "id": f"fc_{call_id}_{index}", "arguments": call.arguments}
        items.append(item)
    return items


def _write_item(events: _Events, index: int, item: dict[str, Any]) -> None:
    where = {"output_index": index, "item_id": item["id"]}
    empty = {key: [] if key == "content" else "" for key in ("content", "arguments", "input") if key in item}
    events.add("response.output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})
    for spot, part in enumerate(item.get("content", ())):
        kind = part["type"]
        key = "refusal" if kind == "refusal" else "text"
        event = f"response.{kind}"  # output_text, refusal, reasoning_text
        at = {**where, "content_index": spot}
        if kind != "reasoning_text":
            events.add("response.content_part.added", **at, part={**part, key: ""})
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        events.add(f"{event}.delta", **at, delta=part[key], **logprobs)
        events.add(f"{event}.done", **at, **{key: part[key]}, **logprobs)
        if kind != "reasoning_text":
            events.add("response.content_part.done", **at, part=part)
    for key, event in (("arguments", "function_call_arguments"), ("input", "custom_tool_call_input")):
        if key in item:
            events.add(f"response.{event}.delta", **where, delta=item[key])
            events.add(f"response.{event}.done", **where, **{key: item[key]}, name=item["name"])
    events.add("response.output_item.done", output_index=index, item=item)


def _response(answer: Answer, request: Request, call_id: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    usage = None
    if answer.prompt_tokens is not None and answer.completion_tokens is not None:
        usage = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        }
    return {
        "id": f"resp_{call_id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }
