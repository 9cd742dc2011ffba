"""Tool calls that no harness could have run: each rule, and where the count ends up."""

import json
from typing import Any

import pytest
from recorder_desk import Desk

from openforge.tokens.message import Message, ToolCall
from proxy_addons.dialects.chat import Chat
from proxy_addons.tool_calls import count_invalid

HI = [{"role": "user", "content": "hi"}]
SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "parameters": {"type": "object", "properties": {"command": {}, "cwd": {}}, "required": ["command"]},
    },
}
LIST = {"type": "function", "function": {"name": "list"}}
PATCH = {"type": "custom", "custom": {"name": "patch"}}

CALLS = {
    "as offered": ("shell", '{"command": "ls"}', 0),
    "with more than is required": ("shell", '{"command": "ls", "cwd": "/", "why": 1}', 0),
    "a key that is null is there": ("shell", '{"command": null}', 0),
    "another name": ("bash", '{"command": "ls"}', 1),
    "a name in other letters": ("Shell", '{"command": "ls"}', 1),
    "without what is required": ("shell", '{"cwd": "/"}', 1),
    "no JSON": ("shell", "{command: ls}", 1),
    "nothing": ("shell", "", 1),
    "a list": ("shell", '["command"]', 1),
    "a text": ("shell", '"command"', 1),
    "a constant that is not JSON": ("shell", '{"command": NaN}', 1),
    "too deep": ("shell", "[" * 100_000, 1),
    "a tool that requires nothing": ("list", "{}", 0),
    "a tool that requires nothing, no object": ("list", "null", 1),
    "a free-form tool as asked for": ("patch", '{"input": "*** Begin"}', 0),
    "a free-form tool, any text": ("patch", "*** Begin", 0),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_invalid_when_no_harness_could_run_it(case: str) -> None:
    name, arguments, invalid = CALLS[case]
    request = Chat().read_request(json.dumps({"messages": HI, "tools": [SHELL, LIST, PATCH]}).encode())
    answer = Message("assistant", tool_calls=(ToolCall("", name, arguments),))
    assert count_invalid(answer, request) == invalid


@pytest.mark.parametrize("required", [None, "command", {"command": 1}, [1, None, ["x"]]])
def test_a_schema_that_is_no_schema_requires_nothing(required: Any) -> None:
    tool = {"type": "function", "function": {"name": "shell", "parameters": {"required": required}}}
    request = Chat().read_request(json.dumps({"messages": HI, "tools": [tool]}).encode())
    assert count_invalid(Message("assistant", tool_calls=(ToolCall("", "shell", "{}"),)), request) == 0


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_a_rollout_counts_every_invalid_call_of_its_answers(desk: Desk) -> None:
    good, bad = call("shell", {"command": "ls"}), call("shell", {})
    desk.engine.say(f"{good}\n{bad}\n{call('other', {})}", good, "<tool_call>\n{bad}\n</tool_call>", "done")
    messages = list(HI)
    for _ in range(4):
        messages += [(await desk.chat(messages, tools=[SHELL], max_tokens=200))["message"], *HI]
    sealed = await desk.seal()
    assert (sealed["calls"], sealed["invalid_calls"]) == (4, 3)
    assert await desk.seal() == sealed


async def test_the_harness_sees_an_invalid_call_as_it_was_written(desk: Desk) -> None:
    desk.engine.say(call("other", {"a": 1}))
    [shown] = (await desk.chat(HI, tools=[SHELL]))["message"]["tool_calls"]
    assert shown["function"] == {"name": "other", "arguments": '{"a": 1}'}


async def test_what_a_title_call_makes_up_does_not_count(desk: Desk) -> None:
    title = [{"role": "system", "content": "Name this conversation."}, *HI]
    desk.engine.say(call("shell", {}), "done", call("shell", {}))
    await desk.chat(title, tools=None)  # before anybody could tell that it is one
    await desk.chat([{"role": "system", "content": "You are an agent."}, *HI], tools=[SHELL])
    await desk.chat([*title, {"role": "user", "content": "again"}], tools=None)
    sealed = await desk.seal()
    assert (sealed["calls"], sealed["invalid_calls"]) == (3, 0)


async def test_an_answer_that_was_not_kept_counts_nothing(desk: Desk) -> None:
    desk.engine.fail("short_logprobs")
    desk.engine.default.text = call("other", {})
    assert (await desk.post({"messages": HI}))[0] == 503
    assert (await desk.seal())["invalid_calls"] == 0
