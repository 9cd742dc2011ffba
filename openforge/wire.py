"""The conversation in the body of a model call, for people: what the recorder could not read, shown all the same.

Chat Completions, Responses and Anthropic Messages, told apart by their parts. Unlike the recorder's dialects this
refuses nothing and makes no tokens: what it does not know is named by its type. Does not know where bodies are kept.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from openforge.images import Image, from_base64, from_url

HISTORIES = ("messages", "input")  # what the dialects call the list that holds the conversation
_ROLES = {"reasoning": "assistant"}


@dataclass(slots=True)
class Said:
    """One item of a conversation; `position` is its index there, None for the instructions beside it."""

    position: int | None
    role: str
    texts: list[str] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    tool_call_id: str | None = None

    def row(self, first: int) -> dict[str, Any]:
        """As a row of the view `messages`, with the lines of its images, of which the first has the number `first`."""
        return {
            "position": self.position,
            "role": self.role,
            "text": "\n".join(self.texts),
            "reasoning": "\n".join(self.thoughts) or None,
            "tool_calls": self.tool_calls or None,
            "tool_call_id": self.tool_call_id,
            "images": [image.told(number) for number, image in enumerate(self.images, first)],
        }


class Found(NamedTuple):
    """An image, and the item of the conversation that it stands in."""

    position: int | None
    role: str
    image: Image


def find_images(body: object) -> list[Found]:
    """The images of a request's body, of any dialect, in order."""
    return images_of(read_body(body))


def images_of(said: Iterable[Said]) -> list[Found]:
    """The images of what was said."""
    return [Found(one.position, one.role, image) for one in said for image in one.images]


def read_body(body: object, start: int = 0) -> list[Said]:
    """The conversation of a request's body from the item `start` on; the instructions come before the first one."""
    if not isinstance(body, Mapping):
        return []
    found = [_read({"role": "system", "content": body.get(name)}, None) for name in ("system", "instructions")]
    said = [one for one in found if one.texts or one.images] if start == 0 else []
    return said + [_read(item, position) for position, item in enumerate(history(body)) if position >= start]


def history(body: Mapping[str, Any]) -> list[Any]:
    """The items of the conversation in a request's body; none when it has no such list."""
    for name in HISTORIES:
        if isinstance(value := body.get(name), list):
            return value
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
    return []


def role_of(item: object) -> str:
    """Who said it, as far as the item tells."""
    if not isinstance(item, Mapping):
        return "unknown"
    if isinstance(role := item.get("role"), str):
        return role
    kind = str(item.get("type"))
    return "assistant" if kind.endswith("_call") else "tool" if kind.endswith("_output") else _ROLES.get(kind, kind)


def rows_of(said: list[Said]) -> list[dict[str, Any]]:
    """Their rows, the images counted from 1."""
    rows, count = [], 1
    for one in said:
        rows.append(one.row(count))
        count += len(one.images)
    return rows


def _read(item: object, position: int | None) -> Said:
    said = Said(position, role_of(item))
    if not isinstance(item, Mapping):
        said.texts.append(_json(item))
        return said
    kind = str(item.get("type"))
    if isinstance(call_id := item.get("tool_call_id") or item.get("call_id"), str):
        said.tool_call_id = call_id if said.role == "tool" else None
    if kind.endswith("_call"):
        _add_call(said, item, kind)
    elif kind == "reasoning":
        _add(said, item.get("content") or item.get("summary"))
        said.texts, said.thoughts = [], said.texts
    else:
        _add(said, item.get("content") if item.get("content") is not None else item.get("output"))
    if isinstance(thought := item.get("reasoning_content") or item.get("reasoning"), str):
        said.thoughts.append(thought)
    for call in calls if isinstance(calls := item.get("tool_calls"), list) else ():
        _add_call(said, call, "tool_call")
    return said


def _add(said: Said, part: object) -> None:
    """A part of a message, or a list of them."""
    if isinstance(part, str):
        said.texts.append(part)
    elif isinstance(part, list):
        for one in part:
            _add(said, one)
    elif isinstance(part, Mapping):
        _add_part(said, part, part.get("type"))
    elif part is not None:
        said.texts.append(_json(part))


def _add_part(said: Said, part: Mapping[str, Any], kind: object) -> None:
    if kind in ("image_url", "input_image", "computer_screenshot"):
        url = part.get("image_url")
        said.images.append(from_url(url.get("url") if isinstance(url, Mapping) else url))
    elif kind == "image":
        said.images.append(_anthropic_image(part.get("source")))
    elif kind == "tool_result":
        _add(said, part.get("content"))
    elif kind == "tool_use":
        _add_call(said, part, "tool_use")
    elif isinstance(thought := part.get("thinking"), str):
        said.thoughts.append(thought)
    elif isinstance(text := part.get("text", part.get("refusal")), str):
        said.texts.append(text)
    else:
        said.texts.append(f"[{kind or 'a part without a type'}: not shown here, the raw request has it]")


def _anthropic_image(source: object) -> Image:
    source = source if isinstance(source, Mapping) else {}
    if isinstance(data := source.get("data"), str):
        return from_base64(str(source.get("media_type") or ""), data)
    return from_url(source.get("url"))


def _add_call(said: Said, call: object, kind: str) -> None:
    if not isinstance(call, Mapping):
        said.texts.append(_json(call))
        return
    inner = next((one for name in ("function", "custom") if isinstance(one := call.get(name), Mapping)), call)
    given = next((inner[name] for name in ("arguments", "input", "action") if inner.get(name) is not None), "")
    arguments = given if isinstance(given, str) else _json(given)
    call_id = str(call.get("id") or call.get("call_id") or "")
    said.tool_calls.append({"id": call_id, "name": str(inner.get("name") or kind), "arguments": arguments})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
