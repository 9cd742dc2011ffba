import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from openforge.errors import ConfigError
from openforge.task import load_tasks
from proxy_addons.dialects import DIALECTS
from proxy_addons.teacher import FINAL, Plans, build_app, read_commands, read_plans

PLANS = {"fix-it": Plans(("cat a.txt", "sed -i 's/a/b/' a.txt"), (("cat a.txt", "rm a.txt"), ("rm a.txt",)))}
ROLLOUT = "r00000000abc.fix-it.react.{sample}"
SHELLS = {"shell": "command", "bash": "command", "exec_command": "cmd"}


@pytest.fixture
async def client() -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(build_app(PLANS))) as client:
        yield client


def chat_body(names: list[str], history: list[dict[str, Any]], stream: bool) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]
    return {"model": "m", "messages": [{"role": "user", "content": "go"}, *history], "tools": tools, "stream": stream}


def responses_body(names: list[str], history: list[dict[str, Any]], stream: bool) -> dict[str, Any]:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in names]
    first = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}
    return {"model": "m", "input": [first, *history], "tools": tools, "stream": stream}


def chat_turn(call: tuple[str, str], number: int) -> list[dict[str, Any]]:
    function = {"id": f"c{number}", "type": "function", "function": {"name": call[0], "arguments": call[1]}}
    said = {"role": "assistant", "content": None, "tool_calls": [function]}
    return [said, {"role": "tool", "tool_call_id": f"c{number}", "content": "ok"}]


def responses_turn(call: tuple[str, str], number: int) -> list[dict[str, Any]]:
    said = {"type": "function_call", "call_id": f"c{number}", "name": call[0], "arguments": call[1]}
    return [said, {"type": "function_call_output", "call_id": f"c{number}", "output": "ok"}]


async def play(
    client: TestClient[Any, Any], dialect: str, names: list[str], *, sample: int, stream: bool
) -> list[tuple[str, dict[str, str]] | str]:
    """Talk to the teacher as a harness would; its calls in order, then what it says last."""
    body, turn = {"chat": (chat_body, chat_turn), "responses": (responses_body, responses_turn)}[dialect]
    wire = next(found for found in DIALECTS if found.name == dialect)
    history: list[dict[str, Any]] = []
    seen: list[tuple[str, dict[str, str]] | str] = []
    for number in range(9):
        headers = {"x-session-id": ROLLOUT.format(sample=sample)}
        async with client.post(f"/v1{wire.path}", json=body(names, history, stream), headers=headers) as reply:
            assert reply.status == 200
            message = wire.read_answer(reply.content_type, await reply.read()).message
        if not message.tool_calls:
            return [*seen, message.text]
        (call,) = message.tool_calls
        seen.append((call.name, json.loads(call.arguments)))
        history += turn((call.name, call.arguments), number)
    raise AssertionError("the teacher never ends")


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shell", list(SHELLS))
async def test_plays_the_solution_and_says_done(
    client: TestClient[Any, Any], dialect: str, stream: bool, shell: str
) -> None:
    seen = await play(client, dialect, ["other", shell], sample=4, stream=stream)
    assert seen == [*((shell, {SHELLS[shell]: command}) for command in PLANS["fix-it"].solve), FINAL]


async def test_near_misses_take_turns(client: TestClient[Any, Any]) -> None:
    plans = [await play(client, "chat", ["shell"], sample=sample, stream=False) for sample in (1, 3, 5)]
    assert [len(plan) for plan in plans] == [3, 2, 3]
    assert plans[1] == [("shell", {"command": "rm a.txt"}), FINAL]


async def test_a_file_is_shown_with_the_tool_that_reads_files(client: TestClient[Any, Any]) -> None:
    seen = await play(client, "chat", ["read", "bash"], sample=0, stream=True)
    assert seen[0] == ("read", {"path": "a.txt"})
    assert seen[1] == ("bash", {"command": "sed -i 's/a/b/' a.txt"})


@pytest.mark.parametrize(
    ("session", "names", "code"),
    [
        ("", ["shell"], "no_rollout"),
        (ROLLOUT.format(sample=0).replace("fix-it", "else"), ["shell"], "unknown_task"),
        (ROLLOUT.format(sample=0), ["browse"], "no_shell"),
    ],
)
async def test_refuses_by_name(client: TestClient[Any, Any], session: str, names: list[str], code: str) -> None:
    headers = {"x-session-id": session}
    async with client.post("/v1/chat/completions", json=chat_body(names, [], False), headers=headers) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == code


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "#!/bin/sh\nfor x in a; do\n  echo\ndone\n", "ls \\\n"])
def test_a_script_that_is_not_one_command_a_line_is_refused(tmp_path: Path, text: str) -> None:
    script = tmp_path / "solve.sh"
    script.write_text(text)
    with pytest.raises(ConfigError):
        read_commands(script)


def test_every_desk_task_can_be_played() -> None:
    plans = read_plans(load_tasks(["desk"]))
    assert len(plans) >= 12
    assert all(2 <= len(plan.solve) <= 3 and plan.near_misses for plan in plans.values())
    # The same first look in right and wrong plans: what a model sees must not tell it which of the two comes.
    assert all(plan.solve != miss for plan in plans.values() for miss in plan.near_misses)
