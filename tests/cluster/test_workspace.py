"""Start files are made once for each task and seed, and every rollout has its own copy of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from desk import Desk

from cluster.runtimes.process import ProcessRuntime
from cluster.workspace import StartFiles
from openforge.config.models import Sandbox
from openforge.errors import InfraError
from openforge.task import Task

pytestmark = pytest.mark.contract

COUNT = 'date +%N > stamp; echo "$OPENFORGE_SEED" > seed; ln -s seed link\n'


@pytest.fixture
async def start_files(runtime: ProcessRuntime) -> AsyncIterator[StartFiles]:
    made = StartFiles(runtime, keep=2)
    yield made
    await made.close()


def task_of(desk: Desk, setup: str = COUNT) -> Task:
    task = desk.task("echo 0 > $REWARD_FILE\n", setup=setup)
    assert task.setup is not None
    return task


async def test_a_group_begins_from_the_same_files_made_once(
    start_files: StartFiles, desk: Desk, tmp_path: Path
) -> None:
    task = task_of(desk)
    made = await asyncio.gather(*(start_files.workspace(task, 7, Sandbox(), tmp_path / "log") for _ in range(4)))
    assert len({(one.work / "stamp").read_text() for one in made}) == 1
    assert {(one.work / "seed").read_text() for one in made} == {"7\n"}
    assert all((one.work / "link").is_symlink() and (one.orig / "link").is_symlink() for one in made)
    for one in made:
        one.remove()


async def test_another_seed_has_files_of_its_own(start_files: StartFiles, desk: Desk, tmp_path: Path) -> None:
    task = task_of(desk)
    one, other = [await start_files.workspace(task, seed, Sandbox(), tmp_path / "log") for seed in (1, 2)]
    assert (one.work / "seed").read_text() != (other.work / "seed").read_text()
    one.remove()
    other.remove()


async def test_what_one_rollout_writes_no_other_sees(start_files: StartFiles, desk: Desk, tmp_path: Path) -> None:
    task = task_of(desk)
    one = await start_files.workspace(task, 1, Sandbox(), tmp_path / "log")
    (one.work / "seed").write_text("changed")
    assert (one.orig / "seed").read_text() == "1\n"
    one.remove()
    other = await start_files.workspace(task, 1, Sandbox(), tmp_path / "log")
    assert (other.work / "seed").read_text() == "1\n"
    other.remove()


async def test_a_setup_that_failed_is_tried_again(start_files: StartFiles, desk: Desk, tmp_path: Path) -> None:
    task = task_of(desk, setup="exit 1\n")
    for _ in range(2):
        with pytest.raises(InfraError, match=r"setup of .* failed"):
            await start_files.workspace(task, 1, Sandbox(), tmp_path / "log")


async def test_only_the_newest_are_kept_and_none_after_the_end(
    runtime: ProcessRuntime, desk: Desk, tmp_path: Path
) -> None:
    start_files, task = StartFiles(runtime, keep=2), task_of(desk)
    folder = runtime.new_folder()
    runtime.remove_folder(folder)
    for seed in range(5):
        (await start_files.workspace(task, seed, Sandbox(), tmp_path / "log")).remove()
    assert len(list(folder.parent.glob("s*"))) == 2 * 2  # a folder and an untouched copy of each
    await start_files.close()
    assert not list(folder.parent.glob("s*"))
