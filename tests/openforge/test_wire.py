"""The three dialects, read for people: every image in its place, and nothing left out in silence."""

from typing import Any

import pytest

from openforge.wire import find_images, read_body, rows_of
from tests.openforge.pictures import b64, encoded

PNG, JPEG = encoded("PNG", (4, 3)), encoded("JPEG", (8, 6))
PNG_URL, JPEG_URL = f"data:image/png;base64,{b64(PNG)}", f"data:image/jpeg;base64,{b64(JPEG)}"


def anthropic(data: bytes, media_type: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": b64(data)}}


CHAT = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what?"},
                                     {"type": "image_url", "image_url": {"url": PNG_URL, "detail": "low"}}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm",
         "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "shot", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": JPEG_URL}]},
    ]
}  # fmt: skip
RESPONSES = {
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "what?"},
                                     {"type": "input_image", "image_url": PNG_URL}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "shot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": JPEG_URL}]},
        {"type": "computer_call", "call_id": "c2", "action": {"type": "click", "x": 1}},
        {"type": "computer_call_output", "call_id": "c2",
         "output": {"type": "computer_screenshot", "image_url": PNG_URL}},
    ],
}  # fmt: skip
ANTHROPIC = {
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": [anthropic(PNG, "image/png"), {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
                                          {"type": "tool_use", "id": "c1", "name": "shot", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1",
             "content": [{"type": "text", "text": "here"}, anthropic(JPEG, "image/jpeg")]}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (CHAT, [(1, "user", PNG), (3, "tool", JPEG)]),
        (RESPONSES, [(0, "user", PNG), (3, "tool", JPEG), (5, "tool", PNG)]),
        (ANTHROPIC, [(0, "user", PNG), (2, "user", JPEG)]),
    ],
    ids=["chat", "responses", "anthropic"],
)
def test_images_are_found_in_order_with_their_message(body: object, places: list[object]) -> None:
    assert [(position, role, image.data) for position, role, image in find_images(body)] == places


@pytest.mark.parametrize("body", [CHAT, RESPONSES, ANTHROPIC], ids=["chat", "responses", "anthropic"])
def test_what_was_said_around_them_is_there(body: object) -> None:
    rows = rows_of(read_body(body))
    assert {row["role"] for row in rows} <= {"system", "user", "assistant", "tool"}
    assert "be brief" in rows[0]["text"]
    assert "what?" in "".join(row["text"] for row in rows)
    assert "hm" in [row["reasoning"] for row in rows]
    calls = [call for row in rows for call in row["tool_calls"] or ()]
    assert calls[0] == {"id": "c1", "name": "shot", "arguments": "{}"}
    lines = [line for row in rows for line in row["images"]]
    assert [line[:8] for line in lines] == [f"[image {number}" for number in range(1, len(lines) + 1)]


def test_from_an_item_on_the_instructions_are_not_said_again() -> None:
    assert [said.position for said in read_body(RESPONSES)][:2] == [None, 0]
    assert [said.position for said in read_body(RESPONSES, 3)] == [3, 4, 5]


def test_images_elsewhere_and_parts_of_other_kinds_are_named() -> None:
    parts = [
        {"type": "image", "source": {"type": "url", "url": "https://example.com/x"}},
        {"type": "image", "source": {"type": "file", "file_id": "f"}},
        {"type": "input_image", "file_id": "f"},
        {"type": "input_audio", "input_audio": {"data": "AA"}},
    ]
    [said] = read_body({"messages": [{"role": "user", "content": parts}]})
    assert [image.fault.split()[0] for image in said.images] == ["at", "not", "not"]
    assert said.texts == ["[input_audio: not shown here, the raw request has it]"]


GARBAGE = [
    *(None, 7, "x", [], {}, {"messages": None}, {"messages": 7}, {"input": "hello"}, {"messages": [None, 7, [], {}]}),
    {"messages": [{"role": 7, "content": {"type": []}, "tool_calls": [None, {"function": 7}]}]},
    {"messages": [{"content": [None, 7, [[]], {}, {"type": "image"}, {"type": "image", "source": 7}]}]},
    {"messages": [{"content": [{"type": "image_url"}, {"type": "image_url", "image_url": {"url": []}}]}]},
    {"input": [{"type": "function_call"}, {"type": "reasoning"}, {"type": "x_call_output", "output": 7}]},
    {"system": 7, "messages": [{"role": "user", "content": [{"type": "tool_result", "content": {"a": 1}}]}]},
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_read_as_far_as_it_goes(body: object) -> None:
    rows = rows_of(read_body(body))
    assert all(isinstance(row["text"], str) and isinstance(row["role"], str) for row in rows)
    assert [found.image for found in find_images(body) if not found.image.fault] == []
