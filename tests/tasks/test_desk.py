"""The desk tasks: their form, that they are deterministic, and (contract) that each is valid by execution."""

import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from openforge.task import Task, load_tasks

TASKS = load_tasks(["desk"])
BY_NAME = {task.name: task for task in TASKS}
PATH = "/usr/local/bin:/usr/bin:/bin"

each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def set_up(task: Task, folder: Path, seed: int) -> Path:
    """The start files of one seed in a new folder."""
    folder.mkdir(parents=True)
    assert task.setup is not None
    environment = {"PATH": PATH, "OPENFORGE_SEED": str(seed)}
    subprocess.run(["sh", str(task.setup)], cwd=folder, env=environment, check=True, timeout=30)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def score(task: Task, work: Path, orig: Path) -> str:
    """What the verifier writes, run as it would be in a container without our helper for untrusted code."""
    reward = work.parent / "reward.txt"
    environment = {"PATH": PATH, "REWARD_FILE": str(reward), "TASK_ORIG": str(orig)}
    subprocess.run(["bash", str(task.tests / "test.sh")], cwd=work, env=environment, timeout=60)
    return reward.read_text().strip()


def work_and_orig(task: Task, folder: Path, seed: int = 0) -> tuple[Path, Path]:
    return set_up(task, folder / "work", seed), set_up(task, folder / "orig", seed)


def test_covers_what_a_desk_needs() -> None:
    assert len(TASKS) >= 12
    assert {"files", "data", "config", "service", "bug"} <= {task.metadata["category"] for task in TASKS}
    assert BY_NAME["stock-tool"].skills == (".agents/skills/stock",)


@each_task
def test_start_files_depend_on_the_seed_only(task: Task, tmp_path: Path) -> None:
    made = [files(set_up(task, tmp_path / str(number), seed)) for number, seed in enumerate((3, 3, 4, 5, 6))]
    assert made[0] == made[1]
    assert any(other != made[0] for other in made[2:])


@each_task
def test_the_container_makes_the_same_start_files(task: Task) -> None:
    lines = (task.root / "environment" / "Dockerfile").read_text().splitlines()
    assert "WORKDIR /app" in lines
    assert "COPY setup.sh /tmp/setup.sh" in lines
    assert lines[-1] == "RUN sh /tmp/setup.sh && rm /tmp/setup.sh && cp -a /app /orig"


@each_task
def test_neither_the_path_nor_the_files_give_the_task_away(task: Task, tmp_path: Path) -> None:
    """A name in the prompt would be read instead of the instruction."""
    assert not any(task.name in name for name in files(set_up(task, tmp_path / "work", 0)))
    assert task.name not in task.instruction


@each_task
def test_a_broken_answer_scores_zero_and_not_nothing(task: Task, tmp_path: Path) -> None:
    work, orig = work_and_orig(task, tmp_path)
    for name in re.findall(r"\[ -f (\S+) \]", (task.tests / "test.sh").read_text()):
        (work / name).unlink(missing_ok=True)
        (work / name).mkdir(parents=True)
    assert score(task, work, orig) == "0"


@pytest.mark.parametrize(
    ("name", "answer"), [("count-lines", "answer.txt"), ("sort-names", "sorted.txt"), ("set-port", "config.json")]
)
def test_a_link_planted_as_the_answer_is_not_followed(name: str, answer: str, tmp_path: Path) -> None:
    task = BY_NAME[name]
    work, orig = work_and_orig(task, tmp_path)
    subprocess.run(["bash", str(task.solution)], cwd=work, env={"PATH": PATH}, capture_output=True, check=True)
    assert score(task, work, orig) == "1"
    (work / answer).rename(tmp_path / "elsewhere")
    (work / answer).symlink_to(tmp_path / "elsewhere")
    assert score(task, work, orig) == "0"


def test_modules_and_programs_in_the_work_folder_do_not_reach_the_verifier(tmp_path: Path) -> None:
    for name in ("set-port", "pack-project", "stock-tool", "count-lines"):
        task = BY_NAME[name]
        work, orig = work_and_orig(task, tmp_path / name)
        for module in ("json", "tarfile", "pathlib", "sitecustomize", "re"):
            (work / f"{module}.py").write_text("import os\nos._exit(0)\n")
        for program in ("python3", "cmp", "wc", "head", "timeout"):
            (work / program).write_text("#!/bin/sh\nexit 0\n")
            (work / program).chmod(0o755)
        assert score(task, work, orig) == "0"


def test_code_of_the_agent_that_ends_early_or_prints_is_not_believed(tmp_path: Path) -> None:
    task = BY_NAME["fix-mean"]
    programs = ("import sys\nsys.exit(0)\n", "print('3.0 3.0 7.0')\n", "def mean(xs):\n    return 3.0\n")
    for number, program in enumerate(programs):
        work, orig = work_and_orig(task, tmp_path / str(number))
        (work / "mean.py").write_text(program)
        assert score(task, work, orig) == "0"


def test_an_archive_with_a_link_or_another_path_scores_zero(tmp_path: Path) -> None:
    task = BY_NAME["pack-project"]
    work, orig = work_and_orig(task, tmp_path)
    with tarfile.open(work / "backup.tar.gz", "w:gz") as archive:
        archive.add(work / "project", "project")
    assert score(task, work, orig) == "1"
    (work / "project" / "link").symlink_to("/etc/passwd")
    with tarfile.open(work / "backup.tar.gz", "w:gz") as archive:
        archive.add(work / "project", "project")
    assert score(task, work, orig) == "0"


def test_the_stock_service_answers_refuses_and_ends_with_its_home(tmp_path: Path) -> None:
    task = BY_NAME["stock-tool"]
    work = set_up(task, tmp_path / "work", 1)
    home = tmp_path / "home"
    home.mkdir()
    environment = {"PATH": PATH, "HOME": str(home)}

    def stock(*words: str) -> str:
        done = subprocess.run(
            ["tools/stock", *words], cwd=work, env=environment, capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip()

    before = int(stock("count", "bolt"))
    assert stock("reserve", "bolt", "5") == "reserved 5 bolt"
    assert stock("count", "bolt") == str(before - 5)
    assert stock("reserve", "bolt", "999") == "refused: not enough bolt"
    assert stock("reserve", "bolt", "many").startswith("usage:")
    assert "bolt" in stock("list").split()
    assert json.loads((work / "tools" / "stock.json").read_text())["reserved"] == [["bolt", 5]]
    (server,) = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(work / "tools" / "stockd.py").encode() in _command(entry)
    ]
    os.kill(server, 15)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
