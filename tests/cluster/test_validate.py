"""`openforge tasks validate` finds the tasks that are not valid."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from desk import Desk

from cluster.runtimes.process import ProcessRuntime
from cluster.validate import validate_task, validate_tasks
from cluster.worktree import fingerprint
from openforge.config.models import Sandbox
from openforge.task import load_tasks

pytestmark = pytest.mark.contract


@pytest.fixture
async def runtime(isolated: None) -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime("require", keep_start_files=0)
    await made.start()
    yield made
    await made.close()


async def failures(runtime: ProcessRuntime, desk: Desk, **parts: str) -> set[str]:
    (desk.root / "logs").mkdir(exist_ok=True)
    checks = await validate_task(runtime, desk.task(**parts), Sandbox(), [0], desk.root / "logs")
    return {check.check for check in checks if not check.ok}


async def test_a_sound_task_passes_and_each_fault_fails_its_own_check(runtime: ProcessRuntime, desk: Desk) -> None:
    assert await failures(runtime, desk) == set()
    assert await failures(runtime, desk, test="echo 1 > $REWARD_FILE") == {"nothing"}
    assert await failures(runtime, desk, test="echo 0 > $REWARD_FILE") == {"oracle"}
    assert await failures(runtime, desk, test="exit 1") == {"oracle", "nothing"}
    assert await failures(runtime, desk, setup="date +%N > start.txt") == {"same start files"}
    assert await failures(runtime, desk, setup="exit 3") == {"oracle", "nothing", "same start files"}


async def test_a_near_miss_that_scores_is_found(runtime: ProcessRuntime, desk: Desk) -> None:
    task = desk.task()
    (task.root / "solution" / "near-miss-1.sh").write_text("echo 42 > answer.txt\n")
    checks = await validate_task(runtime, task, Sandbox(), [0], desk.root)
    assert {check.check for check in checks if not check.ok} == {"near-miss-1"}
    assert [check.problem for check in checks if not check.ok] == ["near-miss-1 scored 1, must score 0"]


async def test_every_desk_task_is_valid(isolated: None, tmp_path: Path) -> None:
    runtime = ProcessRuntime("require", keep_start_files=0)
    checks = await validate_tasks(runtime, load_tasks(["desk"]), Sandbox(), [7], tmp_path, 2)
    assert [check for check in checks if not check.ok] == []


def test_a_fingerprint_sees_names_modes_links_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    prints = [fingerprint(tmp_path)]
    (tmp_path / "a").chmod(0o755)
    prints.append(fingerprint(tmp_path))
    (tmp_path / "b").symlink_to("a")
    prints.append(fingerprint(tmp_path))
    (tmp_path / "a").write_text("2")
    prints.append(fingerprint(tmp_path))
    assert len(set(prints)) == 4
