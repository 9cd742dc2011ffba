"""The wire dialects: requests as harnesses write them, what is written is read back, and garbage."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import ANSWERS, CALLS, CHAT, CHAT_REQUEST, RESPONSES, RESPONSES_REQUEST

from openforge.tokens.message import Message, ToolCall
from proxy_addons.dialects import DIALECTS
from proxy_addons.dialects.base import Answer, Dialect, WireError


def read(dialect: Dialect, body: Any) -> Any:
    return dialect.read_request(json.dumps(body).encode())


def test_a_chat_request_as_harnesses_write_it() -> None:
    """W02 reasoning, W04 no content and empty tool_calls, W05 tool_choice, W10 unknown enum values."""
    request = read(CHAT, CHAT_REQUEST)
    assert request.messages == (
        Message("system", "be good"),
        Message("user", "a\nb"),
        Message("assistant", "", "", (ToolCall("c1", "bash", "{}"),)),
        Message("tool", "", tool_call_id="c1"),
        Message("assistant", "x", "why"),
        Message("user", "go"),
    )
    assert [tool.name for tool in request.tools] == ["bash", "apply_patch"]
    assert request.dropped_tools == ("web_search_preview",)
    assert (request.stream, request.max_tokens, request.history_items, request.n) == (True, 5, 6, 1)
    assert request.sampling == {"temperature": 0.2, "tool_choice": "auto"}


def test_a_responses_request_as_codex_writes_it() -> None:
    request = read(RESPONSES, RESPONSES_REQUEST)
    patch = ToolCall("c2", "apply_patch", '{"input": "*** Begin\\n"}')
    assert request.messages == (
        Message("system", "be good"),
        Message("user", "a\nb"),
        Message("assistant", "on it", "why", (ToolCall("c1", "files.read", "{}"), patch)),
        Message("tool", "out", tool_call_id="c1"),
        Message("tool", "done", tool_call_id="c2"),
        Message("user", "go"),
    )
    assert [tool.name for tool in request.tools] == ["bash", "files.read", "apply_patch"]
    assert request.dropped_tools == ("web_search",)
    assert (request.max_tokens, request.history_items) == (5, 9)


def test_responses_takes_a_string_and_instructions() -> None:
    request = read(RESPONSES, {"input": "hi", "instructions": "be brief"})
    assert request.messages == (Message("system", "be brief"), Message("user", "hi"))


def test_w05_tool_choice_without_tools_is_fine() -> None:
    assert read(CHAT, {"messages": [{"role": "user", "content": "x"}], "tool_choice": "auto"}).tools == ()


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
REFUSED = [
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "unsupported_content", "image_url"),
    (CHAT, {"messages": [{"role": "tool", "content": [IMAGE]}]}, "unsupported_content", "messages[0]"),
    (CHAT, {"messages": [{"role": "critic", "content": "x"}]}, "invalid_request", "critic"),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "invalid_request", "max_tokens"),
    (RESPONSES, {"input": [{"role": "user", "content": [PICTURE]}]}, "unsupported_content", "input_image"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_content", "item_reference"),
    (RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
    (RESPONSES, {"input": []}, "invalid_request", "input"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "body", "code", "name"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_read_is_refused_by_name_and_never_dropped(
    dialect: Dialect, body: Any, code: str, name: str
) -> None:
    with pytest.raises(WireError) as caught:
        read(dialect, body)
    assert (caught.value.status, caught.value.code) == (400, code)
    assert name in caught.value.message
    assert json.loads(dialect.write_error(caught.value))["error"]["code"] == code


def test_a_string_cut_in_the_middle_of_an_emoji_is_read() -> None:
    body = b'{"messages": [{"role": "tool", "content": "a\\ud83d b"}]}'
    assert CHAT.read_request(body).messages[0].text == "a? b"


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_an_answer_is_read_back_as_it_was_written(dialect: Dialect, name: str, stream: bool) -> None:
    answer = ANSWERS[name]
    request = read(dialect, CHAT_REQUEST if dialect is CHAT else RESPONSES_REQUEST)
    body = (dialect.write_stream if stream else dialect.write_answer)(answer, request, "c1")
    kind = "text/event-stream; charset=utf-8" if stream else "application/json"
    assert dialect.read_answer(kind, body) == answer
    if stream:
        assert any(mark in body.rstrip().rpartition(b"\n\n")[2] for mark in dialect.terminal)
        assert dialect.read_answer(kind, body.replace(b"\n", b"\r\n")) == answer


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_w07_w11_unknown_usage_is_unknown(dialect: Dialect) -> None:
    request = read(dialect, CHAT_REQUEST if dialect is CHAT else RESPONSES_REQUEST)
    silent = Answer(Message("assistant", "x"), "stop")
    for stream in (False, True):
        body = (dialect.write_stream if stream else dialect.write_answer)(silent, request, "c1")
        read_back = dialect.read_answer("text/event-stream" if stream else "application/json", body)
        assert (read_back.prompt_tokens, read_back.completion_tokens) == (None, None)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@given(cut=st.floats(0, 0.999))
@settings(max_examples=40, deadline=None)
def test_a_stream_that_was_cut_is_never_a_whole_answer(dialect: Dialect, cut: float) -> None:
    """Wherever it is cut before the event that carries the finish reason."""
    request = read(dialect, CHAT_REQUEST if dialect is CHAT else RESPONSES_REQUEST)
    body = dialect.write_stream(CALLS, request, "c1")
    last = (
        body.rindex(b'"finish_reason":"tool_calls"') if dialect is CHAT else body.rindex(b"event: response.completed")
    )
    with pytest.raises(WireError):
        dialect.read_answer("text/event-stream", body[: int(last * cut)])


# ── garbage ──────────────────────────────────────────────────────────────────────────────────────────────────────────

KEYS = [
    *("messages", "input", "role", "content", "type", "tools", "tool_calls", "function", "custom", "name", "arguments"),
    *("id", "call_id", "output", "summary", "text", "namespace", "choices", "delta", "message", "usage", "index", "n"),
    *("response", "item", "status", "parameters", "refusal", "max_tokens", "finish_reason", "function_call", "input"),
]
WORDS = [
    *("user", "assistant", "system", "tool", "message", "function", "custom", "namespace", "reasoning", "stop"),
    *("function_call", "custom_tool_call", "function_call_output", "text", "input_text", "output_text", "refusal"),
    *("response.completed", "response.output_item.done", "error", "incomplete", ""),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=25,
)
BODIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)


def mutated(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A real request with one place in it replaced by anything."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(found for key, item in inner for found in places(item, (*path, key)))]

    def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
        if not path:
            return new
        if isinstance(value, dict):
            return {key: replaced(item, path[1:], new) if key == path[0] else item for key, item in value.items()}
        return [replaced(item, path[1:], new) if index == path[0] else item for index, item in enumerate(value)]

    return st.builds(lambda path, new: replaced(base, path, new), st.sampled_from(places(base)), VALUES)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_readers_never_fail_with_anything_but_a_wire_error(dialect: Dialect, data: st.DataObject) -> None:
    base = CHAT_REQUEST if dialect is CHAT else RESPONSES_REQUEST
    body = data.draw(BODIES | mutated(base) | VALUES)
    raw = json.dumps(body).encode()
    complaints = []
    for attempt in (raw, raw[: len(raw) // 2]):
        try:
            request = dialect.read_request(attempt)
        except WireError as error:
            complaints.append(error)
        else:
            assert request.messages
            dialect.write_stream(CALLS, request, "c1")
    assert all(error.status == 400 and error.message for error in complaints)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@given(
    events=st.lists(BODIES | mutated({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}), max_size=4)
)
@settings(max_examples=120, deadline=None)
def test_readers_of_answers_never_fail_with_anything_but_a_wire_error(
    dialect: Dialect, events: list[dict[str, Any]]
) -> None:
    complaints = []
    stream = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    for kind, body in (
        ("text/event-stream", stream),
        ("application/json", json.dumps(events[:1] and events[0]).encode()),
    ):
        try:
            answer = dialect.read_answer(kind, body)
        except WireError as error:
            complaints.append(error)
        else:
            assert answer.message.role == "assistant"
    assert all(error.status in (400, 502) for error in complaints)


@given(body=st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_that_are_no_json_are_a_wire_error(body: bytes) -> None:
    for dialect in DIALECTS:
        with pytest.raises(WireError):
            dialect.read_request(b"\x00" + body)


async def test_reading_does_not_depend_on_a_loop() -> None:
    """Pure: the same from a thread."""
    request = await asyncio.to_thread(read, CHAT, CHAT_REQUEST)
    assert request == read(CHAT, CHAT_REQUEST)
