import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.room import Room, first_messages, react
from cluster.runtimes.process import ProcessRuntime
from cluster.workspace import make_workspace
from openforge.config.models import Config
from openforge.errors import OpenForgeError
from openforge.task import load_tasks, read_task

ROOT = Path(__file__).resolve().parent.parent.parent
TASK = "desk/count-lines"


def test_the_words_and_the_tool_are_those_of_the_harness() -> None:
    assert {"SYSTEM", "TOOL", "MAX_OUTPUT", "COMMAND_S"} <= set(react())
    assert react()["TOOL"]["function"]["name"] == "shell"
    (task,) = load_tasks([TASK])
    assert [message["content"] for message in first_messages(task)] == [react()["SYSTEM"], task.instruction]


def test_a_task_with_skills_is_refused_since_react_lists_them(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("")
    (tmp_path / "instruction.md").write_text("Do it.")
    (tmp_path / "task.toml").write_text('[openforge]\nskills = ["skills/a"]\n')
    with pytest.raises(OpenForgeError, match="skills"):
        first_messages(read_task(tmp_path))


def test_the_desk_loads_no_verl() -> None:
    code = "import benchmarks.training, sys; print('torch' in sys.modules or 'verl' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    runtime, config, (task,) = ProcessRuntime(), Config(), load_tasks([TASK])
    workspace = await make_workspace(runtime, task, 1, config.sandbox, tmp_path / "log")
    yield Room(config, workspace, tmp_path / "log")
    workspace.remove()
    await runtime.close()


@pytest.mark.contract
async def test_commands_of_a_rollout_share_their_folder_and_the_verifier_judges_it(room: Room) -> None:
    (task,) = load_tasks([TASK])
    assert await room.command({"command": "wc -l < notes.txt > answer.txt"}) == "(no output)"
    assert (await room.command({"command": "cat answer.txt"})).strip().isdigit()
    assert await room.command({"command": "echo no >&2; exit 3"}) == "no\n\n[exit 3]"
    assert len(await room.command({"command": "yes | head -c 9000"})) == react()["MAX_OUTPUT"]
    assert (await room.grade(task)).reward == 1


@pytest.mark.parametrize("arguments", ["null", "[]", '"ls"', "{}", '{"command": 5}', '{"command": "a\\u0000b"}'])
@pytest.mark.contract
async def test_arguments_that_are_no_command_are_told_and_run_nothing(room: Room, arguments: str) -> None:
    assert await room.command(json.loads(arguments)) == 'error: arguments must be {"command": "…"}'
