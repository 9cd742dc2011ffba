import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_training import SyntheticTraining

from cluster.detached import start_ticks
from cluster.run_lock import RunLock
from openforge_tui.screens.train import NONE, groups_text, trouble_of
from openforge_tui.widgets.grid import Grid
from openforge_tui.widgets.plot import Plot
from tests.openforge_tui.screens.conftest import SIZES, Opened

_BEGAN = 1_795_000_000.0
_WAITS = (
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {2}); print('up', flush=True); signal.sigwait({2})"
)


@pytest.fixture
def training(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyntheticTraining]:
    """20 steps of 12 groups, and a step under way."""
    clock = itertools.count()
    monkeypatch.setattr("openforge.journal.writer.time.time", lambda: _BEGAN + next(clock) * 0.01)
    monkeypatch.setattr("openforge_tui.screens.train.time.time", lambda: _BEGAN + 300)
    made = SyntheticTraining(project / ".openforge")
    made.train(20)
    made.ask(21)
    yield made
    made.close()


@pytest.fixture
def process(training: SyntheticTraining) -> Iterator[subprocess.Popen[str]]:
    """Stands where the orchestrator's process does: it ends at SIGINT."""
    child = subprocess.Popen([sys.executable, "-c", _WAITS], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    RunLock(training.run_dir).take()
    (training.run_dir / "orchestrator.json").write_text(json.dumps({"url": "", "token": "", "pid": child.pid}))
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def told(app: Opened) -> str:
    """What was said in passing."""
    return "\n".join(notice.message for notice in app.desk._notifications)


async def drawn(app: Opened) -> None:
    await app.until(lambda: not any(plot.drawing for plot in app.view.query(Plot)))
    await app.settled()
    await app.until(lambda: not any(plot.drawing for plot in app.view.query(Plot)))


@pytest.mark.parametrize("size", SIZES)
async def test_a_training_is_shown(training: Any, open_desk: Any, snapshot: Any, size: tuple[int, int]) -> None:
    async with open_desk(mode="train", size=size) as app:
        await app.press("j", "j", "v")
        await drawn(app)
        snapshot(app, "train")


async def test_a_small_screen_has_the_groups_behind_the_last_curve(
    training: Any, open_desk: Any, snapshot: Any
) -> None:
    async with open_desk(mode="train", size=(80, 24)) as app:
        await app.press("j", "V")
        await drawn(app)
        snapshot(app, "train-groups")


@pytest.mark.parametrize("size", SIZES)
async def test_without_a_training_it_says_how_to_begin(open_desk: Any, run: Any, snapshot: Any, size: Any) -> None:
    async with open_desk(mode="train", size=size) as app:
        await app.until_text(NONE)
        snapshot(app, "train-none")


async def test_points_come_while_it_is_open_and_the_newest_is_followed(training: Any, open_desk: Any) -> None:
    async with open_desk(mode="train") as app:
        await app.until_text("running, step 20")
        training.step()
        await app.settled()
        await app.until_text("running, step 21")
        grid = app.view.query_one(Grid)
        assert (grid.current["step"], grid.scroll_offset.y) == (21, 0)
        await app.until_text("step 21   ⢕ reward")
        await app.press("j", "j")
        training.step()
        await app.settled()
        assert grid.current["step"] == 19, "a cursor that was moved stays where it is"


async def test_from_a_step_to_the_rollouts_it_learned_from(training: Any, open_desk: Any) -> None:
    training.end()
    async with open_desk(mode="train") as app:
        await app.press("j", "enter")
        await app.until(lambda: type(app.view).__name__ == "RolloutsScreen")
        assert app.view.run_id == training.run_id
        assert app.view.filter_text == "-l step=20"
        await app.settled()
        await app.until(lambda: app.view.grid.current is not None)
        assert {row["step"] for row in app.view.grid.shown.rows} == {20}


async def test_stop_names_the_process_and_asks_it_once(training: Any, process: Any, open_desk: Any) -> None:
    async with open_desk(mode="train") as app:
        await app.press("ctrl+d")
        await app.until_text(f"Stop training {training.run_id}, process {process.pid}?")
        await app.press("n")
        assert process.poll() is None
        await app.press("ctrl+d", "y")
        await app.until(lambda: process.poll() is not None)
        assert process.returncode == 0
        await app.press("ctrl+d")
        await app.until(lambda: f"process {process.pid} was asked already" in told(app))


async def test_a_training_of_ours_is_stopped_by_its_job(
    training: Any, process: Any, open_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_desk(mode="train") as app:
        folder = app.desk.desk_dir / "jobs" / "00001"
        folder.mkdir(parents=True)
        parent = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", f"import fcntl, sys; fcntl.flock(sys.stdout, fcntl.LOCK_EX); {_JOB}"],
            stdout=(folder / "output.log").open("w"),
        )
        told = training.run_dir / "orchestrator.json"
        await app.until((folder / "child").exists)
        child = int((folder / "child").read_text())
        (folder / "job.json").write_text(json.dumps({"title": "t", "argv": ["train"], "started_at": 0.0}))
        (folder / "pid").write_text(f"{parent.pid} {start_ticks(parent.pid)}")
        told.write_text(json.dumps({"url": "", "token": "", "pid": child}))
        asked: list[int] = []
        monkeypatch.setattr("openforge_tui.jobs.os.kill", lambda pid, number: asked.append(pid))
        await app.press("ctrl+d", "y")
        assert asked == [parent.pid]
        monkeypatch.undo()
        for pid in (child, parent.pid):
            os.kill(pid, signal.SIGKILL)
        parent.wait()


_JOB = (
    "import subprocess, time, pathlib, os; c = subprocess.Popen(['sleep', '60']); "
    "p = pathlib.Path(os.readlink('/proc/self/fd/1')).with_name('child'); "
    "p.with_suffix('.new').write_text(str(c.pid)); p.with_suffix('.new').rename(p); time.sleep(60)"
)


async def test_a_run_that_ended_is_resumed_as_a_job(training: Any, open_desk: Any) -> None:
    training.close()
    async with open_desk(mode="train") as app:
        await app.until_text("its orchestrator died after step 20")
        await app.press("R")
        [job] = app.desk.jobs.all()
        assert job.argv[-3:] == ("train", "--resume", training.run_id)
        app.desk.jobs.stop(job)


async def test_a_training_is_held_and_goes_on_as_jobs_with_the_screen_saying_so(
    training: Any, open_desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("openforge_tui.app.Desk.start", lambda self, title, argv: started.append(list(argv)))
    async with open_desk(mode="train") as app:
        await app.press("P")
        training.orchestrator.append("run.pause", paused=True)
        await app.until_text("paused, step")
        await app.press("P", "R")
        assert started == [[word, training.run_id] for word in ("pause", "unpause", "unpause")]
        training.orchestrator.append("run.end", state="cancelled", reason=None)
        await app.until_text("cancelled, step")
        await app.press("P")
        assert len(started) == 3
        assert f"{training.run_id} does not go on: it is cancelled" in told(app)


async def test_read_only_changes_nothing(training: Any, process: Any, open_desk: Any) -> None:
    async with open_desk(mode="train", readonly=True) as app:
        await app.press("ctrl+d", "R", "P", "r")
        assert type(app.view).__name__ == "TrainScreen"
        assert app.desk.jobs.all() == []
        assert process.poll() is None


async def test_another_run_is_chosen(training: Any, project: Path, open_desk: Any) -> None:
    other = SyntheticTraining(project / ".openforge", "r0000000zzz", samples=1)
    other.train(3)
    async with open_desk(mode="train") as app:
        await app.until_text("train › r0000000zzz")
        await app.press("t")
        await app.until_text("Which training run?")
        await app.press("down", "enter")
        await app.until_text("train › r0000000ttt")
        await app.press("colon", *"train nonsense", "enter")
        await app.until(lambda: "no run is called 'nonsense'" in told(app))
        assert app.view.copyable() == training.run_id
    other.close()


def test_a_trainer_that_died_or_is_silent_is_told(training: Any) -> None:
    from openforge.store.training import TrainingLog

    child = subprocess.Popen(["true"])
    child.wait()
    log = TrainingLog(training.store_root, training.run_id)
    heard_at = log.look().heard_at
    assert heard_at is not None
    assert trouble_of(log.look(), heard_at + 60) == ""
    assert "no word from the trainer for 20 min" in trouble_of(log.look(), heard_at + 1200)
    training.started(1, 20, child.pid)
    assert f"its trainer, process {child.pid}, is gone" in trouble_of(log.look(), heard_at)
    training.end("failed")
    assert f"openforge logs --trainer {training.run_id}" in trouble_of(log.look(), heard_at)


def test_groups_that_do_not_fit_are_counted(training: Any) -> None:
    from openforge.store.training import TrainingLog

    step = TrainingLog(training.store_root, training.run_id).step(5)
    assert step.groups == []  # nothing was read yet
    log = TrainingLog(training.store_root, training.run_id)
    log.look()
    told = groups_text(log.step(5), 42, 10).plain.splitlines()
    assert len(told) == 10
    assert told[-1] == f"{12 - len(told[3:-1])} more groups: enter lists their rollouts"
    assert max(map(len, told)) <= 42
