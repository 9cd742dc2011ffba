"""The verifier's word: what counts as a reward, and that an agent's leftovers can neither write it nor hang it."""

import shutil
from pathlib import Path

import pytest
from desk import CHECK, Desk

from cluster.grading import grade, read_reward
from cluster.runtimes.base import Grade
from cluster.runtimes.process import ProcessRuntime
from cluster.workspace import limits
from openforge.config.models import Sandbox

contract = pytest.mark.contract
CHECK_CODE = """
printed=$(untrusted python3 -c "import calc; print(calc.add(2, 3))")
[ "$printed" = 5 ] && r=1 || r=0
echo $r > "$REWARD_FILE"
"""


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), ("0\n", 0.0), (" 0.25 \n", 0.25), ("-1", -1.0), ("1e-3", 0.001)]
)
def test_one_number_is_a_reward(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert read_reward(tmp_path) == (value, "")


@pytest.mark.parametrize("text", ["", "1 1", "1\n0\n", "nan", "inf", "1_0", "0x1", "one", "1" * 100, "1e999", "٣"])
def test_anything_else_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert read_reward(tmp_path)[0] is None


def test_a_link_a_folder_or_nothing_is_none(tmp_path: Path) -> None:
    assert read_reward(tmp_path)[0] is None
    (tmp_path / "one").write_text("1")
    (tmp_path / "reward.txt").symlink_to("one")
    assert read_reward(tmp_path)[0] is None
    (tmp_path / "reward.txt").unlink()
    (tmp_path / "reward.txt").mkdir()
    assert read_reward(tmp_path) == (None, "the reward is not a regular file")


@pytest.mark.parametrize(
    ("table", "value"),
    [
        ('{"reward": 1}', 1.0),
        ('{"score": 0.5}', 0.5),
        ('{"reward": 0.25, "tests": 8}', 0.25),
        ('{"a": 1, "b": 1}', None),
        ('{"reward": true}', None),
        ('{"reward": NaN}', None),
        ('{"reward": "1"}', None),
        ("[1]", None),
        ("{}", None),
        ("", None),
    ],
)
def test_a_table_counts_by_its_reward_where_there_is_no_text(tmp_path: Path, table: str, value: float | None) -> None:
    (tmp_path / "reward.json").write_text(table)
    assert read_reward(tmp_path)[0] == value
    (tmp_path / "reward.txt").write_text("0.125")
    assert read_reward(tmp_path) == (0.125, "")


async def judged(runtime: ProcessRuntime, desk: Desk, test: str, wall_s: float = 5.0, **files: str) -> Grade:
    """Grade a work folder that holds `files` (path with __ for . in names)."""
    folder = runtime.new_folder()
    for name, text in files.items():
        path = folder / "work" / name.replace("__", ".")
        path.write_text(text)
        path.chmod(0o755)
    runtime.own(folder)
    orig = folder / "orig"
    shutil.copytree(folder / "work", orig)
    log = desk.root / "grade.log"
    return await grade(runtime, desk.task(test), folder / "work", orig, log, limits(Sandbox(), wall_s))


@contract
async def test_right_is_1_and_wrong_is_0_not_an_error(runtime: ProcessRuntime, desk: Desk) -> None:
    assert (await judged(runtime, desk, CHECK, answer__txt="42\n")).reward == 1
    assert (await judged(runtime, desk, CHECK, answer__txt="41\n")).reward == 0
    assert (await judged(runtime, desk, CHECK)).reward == 0


@contract
@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("exit 3\n", "ended with 3"),
        ("sleep 60\n", "no end after"),
        ("echo two > $REWARD_FILE", "not one number"),
        ("kill -9 $$", "SIGKILL"),
    ],
)
async def test_a_verifier_that_fails_gives_no_reward(runtime: ProcessRuntime, desk: Desk, test: str, says: str) -> None:
    grade = await judged(runtime, desk, test, wall_s=1.0)
    assert grade.reward is None
    assert says in grade.problem


@contract
async def test_code_of_the_agent_runs_apart_and_its_answer_counts(runtime: ProcessRuntime, desk: Desk) -> None:
    good = await judged(runtime, desk, CHECK_CODE, calc__py="def add(a, b): return a + b\n")
    assert (good.reward, good.details["untrusted_commands"]) == (1, 1)
    assert (await judged(runtime, desk, CHECK_CODE, calc__py="def add(a, b): return a - b\n")).reward == 0


EVIL = """
import os, glob, subprocess
for path in ["/logs/verifier/reward.txt", os.environ.get("REWARD_FILE", "/x"), "/tmp/reward.txt"]:
    try: open(path, "w").write("1")
    except OSError: pass
for path in ["/tests/test.sh", "/orig/calc.py", "/opt/openforge/untrusted.sock", "/opt/openforge/bin/untrusted"]:
    try: text = open(path).read(); open("found.txt", "a").write(path)
    except OSError: pass
subprocess.run("kill -9 -1", shell=True)
"""


@contract
async def test_code_of_the_agent_cannot_write_the_reward_or_see_the_tests(runtime: ProcessRuntime, desk: Desk) -> None:
    test = CHECK_CODE + '[ -e found.txt ] && echo 9 > "$REWARD_FILE" || true\n'
    assert (await judged(runtime, desk, test, calc__py=EVIL)).reward == 0


@contract
async def test_code_that_hangs_costs_its_reward_not_the_grader(runtime: ProcessRuntime, desk: Desk) -> None:
    grade = await judged(runtime, desk, CHECK_CODE, wall_s=4.0, calc__py="while True: pass\n")
    assert (grade.reward, grade.problem) == (0, "")


@contract
@pytest.mark.parametrize(
    "name", ["python3", "bash", "cat", "__bashrc", "__profile", "sitecustomize__py", "usercustomize__py"]
)
async def test_planted_programs_and_start_files_are_not_run(runtime: ProcessRuntime, desk: Desk, name: str) -> None:
    planted = '#!/bin/sh\necho 1 > "$REWARD_FILE"; echo 42\n'
    text = 'open(__import__("os").environ["REWARD_FILE"], "w").write("1")\n' if name.endswith("py") else planted
    test = 'python3 -I -c "pass"\nbash -lc true\n' + CHECK
    grade = await judged(runtime, desk, test, **{name: text})
    assert grade.reward == 0


@contract
async def test_a_link_to_the_expected_answer_is_no_answer(runtime: ProcessRuntime, desk: Desk) -> None:
    folder = runtime.new_folder()
    (folder / "work" / "answer.txt").symlink_to("/tests/expected.txt")
    (folder / "work" / "fifo").mkdir()
    task = desk.task('[ "$(cat answer.txt)" = "$(cat /tests/expected.txt)" ] && r=1 || r=0; echo $r > $REWARD_FILE\n')
    (task.tests / "expected.txt").write_text("42\n")
    grade_of = await grade(runtime, task, folder / "work", task.tests, desk.root / "log", limits(Sandbox(), 5))
    assert grade_of.reward == 0
    assert grade_of.details["removed"] == ["answer.txt"]


@contract
async def test_a_link_that_untrusted_code_plants_shows_the_verifier_nothing(
    runtime: ProcessRuntime, desk: Desk
) -> None:
    plant = "import os\nos.remove('answer.txt')\nos.symlink('/tests/expected.txt', 'answer.txt')\nos.mkfifo('fifo')\n"
    test = (
        "untrusted python3 plant.py; ls; "
        '[ "$(cat answer.txt)" = "$(cat /tests/expected.txt)" ] && r=1 || r=0; echo $r > $REWARD_FILE\n'
    )
    (desk.task(test).tests / "expected.txt").write_text("42\n")
    grade_of = await judged(runtime, desk, test, plant__py=plant, answer__txt="41\n")
    assert grade_of.reward == 0
    assert sorted(grade_of.details["removed"]) == ["answer.txt", "fifo"]


@contract
async def test_a_module_of_the_agent_is_not_imported_by_the_verifier(runtime: ProcessRuntime, desk: Desk) -> None:
    test = "python3 -c 'import json, shutil'\npython3 - <<'E'\nimport json\nE\n" + CHECK
    evil = 'open("answer.txt", "w").write("42")\n'
    assert (await judged(runtime, desk, test, json__py=evil, shutil__py=evil)).reward == 0


@contract
async def test_a_repository_of_the_agent_runs_no_hook(runtime: ProcessRuntime, desk: Desk) -> None:
    folder = runtime.new_folder()
    shutil.copytree(_repository(desk.root), folder / "work", dirs_exist_ok=True)
    runtime.own(folder)
    task = desk.task("git status >/dev/null; git commit -q --allow-empty -m x; " + CHECK)
    grade_of = await grade(runtime, task, folder / "work", folder / "home", desk.root / "log", limits(Sandbox(), 5))
    assert grade_of.reward == 0


def _repository(root: Path) -> Path:
    folder = root / "repository"
    hooks = folder / ".git" / "hooks"
    for part in (hooks, folder / ".git" / "objects", folder / ".git" / "refs"):
        part.mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "config").write_text(
        "[core]\n\tfsmonitor = /app/.git/hooks/pre-commit\n[user]\n\tname = a\n\temail = a\n"
    )
    (hooks / "pre-commit").write_text("#!/bin/sh\necho 42 > /app/answer.txt\n")
    (hooks / "pre-commit").chmod(0o755)
    return folder
