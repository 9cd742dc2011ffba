"""Tool calls that no harness could have run: another name than was offered, or arguments that do not fit.

Counted, never changed: the harness is shown what the model wrote, and how it complains is part of the rollout. Only the
top level of a tool's schema is looked at, since harnesses differ in what they check below it. A call that could not be
read at all (`malformed`) is the renderer's to tell.
"""

import json
from typing import Any, NoReturn

from openforge.tokens.message import Message, Tool, ToolCall
from proxy_addons.dialects.base import Request


def count_invalid(answer: Message, request: Request) -> int:
    """How many calls of `answer` could not be run with the tools of `request`."""
    if not answer.tool_calls:
        return 0
    tools = {tool.name: tool for tool in request.tools}
    # the text of a free-form tool is whatever the model wrote: it has no arguments that could be wrong
    free = {name for name, origin in request.origins.items() if origin.custom}
    return sum(not (call.name in free or _fits(call, tools.get(call.name))) for call in answer.tool_calls)


def _fits(call: ToolCall, tool: Tool | None) -> bool:
    if tool is None:
        return False
    try:
        arguments = _JSON.decode(call.arguments)
    except (ValueError, RecursionError):
        return False
    required = tool.parameters.get("required")
    keys: list[Any] = required if isinstance(required, list) else []
    return isinstance(arguments, dict) and all(key in arguments for key in keys if isinstance(key, str))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
