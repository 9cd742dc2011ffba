"""A teacher: an OpenAI-compatible server that plays the tasks' solutions, so that real harnesses leave demonstrations.

An even sample plays `solution/solve.sh`, an odd one a near miss (they take turns), so half of what is shown is right.
Stateless: the rollout is told by the header `x-session-id`, the step by counting the tool calls that the request's
history already holds. One command of the plan is one tool call; then comes "Done.".

Started as `python -P -m proxy_addons.teacher` with one JSON object on its standard input, e.g. `{"tasks": ["desk"]}`.
It prints one line, `{"ready": true, "url": ...}`, and ends when the input closes or on SIGTERM.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
from aiohttp import web

from openforge.errors import ConfigError, OpenForgeError
from openforge.ids import split_rollout_id
from openforge.task import Task, load_tasks
from openforge.tokens.message import Message, Tool, ToolCall
from proxy_addons.dialects import DIALECTS
from proxy_addons.dialects.base import Answer, Dialect, Request, WireError

FINAL = "Done."
# The tools that run a shell command, and the argument that takes it: react, pi, codex.
_SHELLS = {"shell": "command", "bash": "command", "exec_command": "cmd"}
_SHOW_FILE = re.compile(r"cat ([\w./-]+)")

Commands = tuple[str, ...]


class Plans(NamedTuple):
    """What may be played for one task."""

    solve: Commands
    near_misses: tuple[Commands, ...]

    def pick(self, sample: int) -> Commands:
        if sample % 2 == 0 or not self.near_misses:
            return self.solve
        return self.near_misses[sample // 2 % len(self.near_misses)]


def read_plans(tasks: Sequence[Task]) -> dict[str, Plans]:
    """The plans of each task by its name. Raises ConfigError for a script that is not one command a line."""
    return {
        task.name: Plans(read_commands(task.solution), tuple(map(read_commands, task.near_misses()))) for task in tasks
    }


def read_commands(script: Path) -> Commands:
    """The commands of a solution script: every line that is neither empty nor a comment."""
    try:
        lines = script.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{script}: {error.strerror}", hint="the teacher needs solution/solve.sh") from error
    commands = tuple(line for line in lines if line.strip() and not line.startswith("#"))
    if not commands or any(line.startswith((" ", "\t")) or line.endswith("\\") for line in commands):
        raise ConfigError(f"{script}: the teacher plays one command a line, nothing indented or continued")
    return commands


def next_message(commands: Commands, request: Request) -> Message:
    """What the teacher says now. Raises WireError 400 when the harness offers no tool that runs a command."""
    step = sum(len(message.tool_calls) for message in request.messages)
    if step >= len(commands):
        return Message("assistant", FINAL)
    return Message("assistant", tool_calls=(_call(commands[step], step, request.tools),))


def _call(command: str, step: int, tools: Sequence[Tool]) -> ToolCall:
    names = {tool.name for tool in tools}
    shown = _SHOW_FILE.fullmatch(command)
    if shown and "read" in names:  # a harness with its own way to read a file is shown using it
        return _write_call("read", {"path": shown[1]}, step)
    for name, argument in _SHELLS.items():
        if name in names:
            return _write_call(name, {argument: command}, step)
    raise WireError(400, "no_shell", f"none of the tools {sorted(names)} is known to run a shell command")


def _write_call(name: str, arguments: Mapping[str, str], step: int) -> ToolCall:
    return ToolCall(f"call_{step}", name, json.dumps(arguments, ensure_ascii=False))


def build_app(plans: Mapping[str, Plans]) -> web.Application:
    """One route a dialect."""
    app = web.Application(client_max_size=64 << 20)
    for dialect in DIALECTS:
        app.router.add_post(f"/v1{dialect.path}", _handler(plans, dialect))
    return app


def _handler(plans: Mapping[str, Plans], dialect: Dialect) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(http: web.Request) -> web.Response:
        try:
            request = dialect.read_request(await http.read())
            commands = _commands(plans, http.headers.get("x-session-id", ""))
            message = next_message(commands, request)
        except WireError as error:
            return web.Response(status=error.status, body=dialect.write_error(error), content_type="application/json")
        said = Answer(message, "tool_calls" if message.tool_calls else "stop")
        call_id = f"{len(request.messages)}"
        if request.stream:
            return web.Response(body=dialect.write_stream(said, request, call_id), content_type="text/event-stream")
        return web.Response(body=dialect.write_answer(said, request, call_id), content_type="application/json")

    return answer


def _commands(plans: Mapping[str, Plans], session_id: str) -> Commands:
    try:
        rollout = split_rollout_id(session_id)
    except OpenForgeError as error:
        raise WireError(400, "no_rollout", f"x-session-id: {error.summary}") from error
    if rollout.task not in plans:
        raise WireError(400, "unknown_task", f"the teacher knows no task {rollout.task!r}")
    return plans[rollout.task].pick(rollout.sample)


async def _serve(plans: Mapping[str, Plans]) -> None:
    runner = web.AppRunner(build_app(plans), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    print(orjson.dumps({"ready": True, "url": f"http://127.0.0.1:{port}/v1"}).decode(), flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    await ended.wait()
    loop.remove_reader(0)
    await runner.cleanup()


if __name__ == "__main__":
    asked = orjson.loads(sys.stdin.buffer.readline())
    asyncio.run(_serve(read_plans(load_tasks(asked["tasks"]))))
