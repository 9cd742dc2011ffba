"""`openforge run`, `status`, `harness` and `tasks` as a person types them: streams, exit codes, what stands in them."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic import SyntheticRun

from openforge.errors import CancelError
from openforge_tui.cli.run import check_end, in_short

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.contract


def openforge(project: Path, *typed: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(project), *typed]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=env)


SEEN = {
    "react": (["chat"], [False], "shell"),
    "pi": (["chat"], [True], "bash"),
    "codex": (["responses"], [True], "exec_command"),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_check_of_a_real_harness_prints_what_it_does_and_then_no_drift(tmp_path: Path, name: str) -> None:
    done = openforge(tmp_path, "harness", "check", name, "-o", "json", timeout=280)
    if done.returncode == 3 and "npm" in done.stderr:
        pytest.skip(f"the harness cannot be fetched here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    seen = {row["what"]: row["seen"] for row in json.loads(done.stdout)}
    dialects, stream, tool = SEEN[name]
    assert (seen["dialects"], seen["stream"], seen["reward"]) == (dialects, stream, 1.0)
    assert tool in seen["tools"]
    assert all(entry.endswith("refuse") for entry in seen["egress"])
    assert seen["breaks"] == {"root": 1, "append": seen["calls"] - 1}
    assert json.loads(openforge(tmp_path, "runs", "-o", "json").stdout) == []
    again = openforge(tmp_path, "harness", "check", name, "--diff", "-o", "json")
    assert (again.returncode, json.loads(again.stdout)) == (0, []), again.stderr


def test_tasks_are_listed_shown_and_proved_valid(tmp_path: Path) -> None:
    listed = json.loads(openforge(tmp_path, "tasks", "list", "-o", "json").stdout)
    assert "desk/count-lines" in [row["task"] for row in listed]
    assert "notes.txt" in openforge(tmp_path, "tasks", "show", "desk/count-lines").stdout
    done = openforge(tmp_path, "tasks", "validate", "desk/count-lines", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert all(row["ok"] for row in json.loads(done.stdout))


def test_a_task_that_is_not_valid_is_exit_code_5(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "bad"
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "task.toml").write_text("")
    (folder / "instruction.md").write_text("x")
    (folder / "tests" / "test.sh").write_text("echo 1 > $REWARD_FILE")
    (folder / "solution" / "solve.sh").write_text("true")
    done = openforge(tmp_path, "tasks", "validate", str(folder))
    assert done.returncode == 5
    assert "next:" in done.stderr


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("run", "--harness", "no-such"), "no harness is called"),
        (("run", "--tasks", "no-such"), "no task or task set"),
        (("harness", "install", "no-such"), "no harness is called"),
        (("run", "--set", "policy.engine=openai", "--set", "run.mode=record"), "base_url"),
    ],
)
def test_what_cannot_be_is_exit_code_2_with_a_hint(tmp_path: Path, typed: tuple[str, ...], says: str) -> None:
    done = openforge(tmp_path, *typed)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stdout == ""


def test_nothing_running_says_what_to_type(tmp_path: Path) -> None:
    done = openforge(tmp_path, "status")
    assert done.returncode == 0
    assert "openforge run" in done.stderr


def test_a_run_of_nothing_but_errors_is_exit_code_3(tmp_path: Path) -> None:
    typed = ("policy.engine=openai", "policy.base_url=http://127.0.0.1:9/v1", "run.mode=record", "run.retries=0")
    settings = [word for setting in (*typed, "run.time_limit_s=3") for word in ("--set", setting)]
    done = openforge(tmp_path, "run", "--tasks", "desk/count-lines", "-o", "json", *settings)
    assert json.loads(done.stdout)[0]["error"] == 1, done.stderr
    assert done.returncode == 3
    assert "done:" not in done.stderr


def test_what_a_run_came_to_in_short() -> None:
    ends = [("done", 1.0), ("failed", 0.25), ("error", None), ("cancelled", None)]
    rollouts = [SimpleNamespace(state=state, reward=reward) for state, reward in ends]
    assert in_short(rollouts) == "4 rollouts, 1 error, 1 cancelled, reward 0.62"
    assert in_short(rollouts[3:]) == "1 rollout, 1 cancelled, none graded"


@pytest.mark.parametrize("state", ["done", "cancelled"])
def test_a_run_that_was_cancelled_is_an_exit_code_of_its_own_and_a_cancelled_rollout_is_not(tmp_path, state) -> None:
    run = SyntheticRun(tmp_path)
    run.end(state)
    run.close()
    rollouts = [SimpleNamespace(state="done"), SimpleNamespace(state="cancelled")]
    check_end(tmp_path, run.run_id, rollouts[:1])
    with pytest.raises(CancelError, match="1 of 2") if state == "cancelled" else nullcontext():
        check_end(tmp_path, run.run_id, rollouts)
