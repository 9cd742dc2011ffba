"""Jobs as a person sees them: made-up folders for the pictures, a real process to be stopped."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openforge_tui.jobs import Job, Jobs
from openforge_tui.screens import jobs as screen
from tests.openforge_tui.screens.conftest import SIZES


def make(
    project: Path, number: int, argv: list[str], *, code: int | None, output: str = "", programs: str = ""
) -> Path:
    """A job that has ended, at a fixed hour."""
    folder = project / ".openforge" / "desk" / "jobs" / f"{number:05d}"
    folder.mkdir(parents=True)
    about = {"title": argv[0], "argv": argv, "started_at": 1_795_000_000.0 + number * 60}
    (folder / "job.json").write_text(json.dumps(about))
    (folder / "pid").write_text("999999 1")
    (folder / "output.log").write_text(output)
    if programs:
        (folder / "programs.log").write_text(programs)
    if code is not None:
        (folder / "exit").write_text(str(code))
    return folder


@pytest.fixture
def some(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One of each way to end."""
    make(project, 1, ["init"], code=0, output="written openforge.toml\nnext: openforge doctor\n")
    make(project, 2, ["up"], code=3, output=UP, programs="13:35:33 docker version --format '{{.Server.Version}}'\n")
    make(project, 3, ["run", "--tasks", "desk"], code=130, output="run r06p3bn2fbdm: 12 rollouts\ninterrupted\n")
    make(project, 4, ["tasks", "validate"], code=5, output="error: 1 of 40 checks failed\n  next: see /tmp/logs\n")
    make(project, 5, ["images", "build"], code=None, output="docker build --tag openforge/sandbox\n")
    monkeypatch.setattr(screen, "row_of", lambda job: {**_row(job), "took": "12 s"})
    with pytest.MonkeyPatch.context() as clock:
        clock.setenv("TZ", "UTC")
        time.tzset()
        yield project
    time.tzset()


UP = "asking docker\nerror: docker does not answer: no daemon\n  next: start Docker and try again\n"
_row = screen.row_of


@pytest.mark.parametrize("size", SIZES)
async def test_jobs_say_how_they_ended(some, open_desk, snapshot, size) -> None:
    async with open_desk(size=size) as app:
        await app.press("J")
        await app.press("down", "down", "down")
        await app.until_text("error: docker does not answer: no daemon")
        snapshot(app, "jobs")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1, "done, exit code 0: ok"),
        (2, "failed, exit code 3: the machine or a service failed; trying again may help"),
        (3, "stopped, exit code 130: interrupted"),
        (4, "failed, exit code 5: a check found something"),
        (5, "lost: its process was killed; how far it came is not known"),
    ],
)
async def test_each_exit_code_has_its_meaning(some, open_desk, number: int, said: str) -> None:
    async with open_desk() as app:
        await app.press("J")
        app.view.query_one(screen.Grid).go_to(f"{number:05d}")
        await app.until_text(said)


async def test_the_end_of_a_run_says_what_it_came_to(project: Path, open_desk) -> None:
    output = "run r06p3bn2fbdm: 36 rollouts\ndone: 36 rollouts, reward 0.61\nnext: openforge rollouts r06p3bn2fbdm\n"
    make(project, 1, ["run"], code=0, output=output)
    async with open_desk(size=(80, 24)) as app:
        [job] = app.desk.jobs.all()
        app.desk.running[job.id] = job
        app.desk._started.set()
        await app.until(lambda: len(app.desk._notifications) > 0)
        [toast] = app.desk._notifications
        assert toast.message == "run done: 36 rollouts, reward 0.61\nnext: openforge rollouts r06p3bn2fbdm"
        await app.press("J")
        await app.until_text("done, exit code 0: 36 rollouts, reward 0.61")


async def test_output_comes_once_whatever_is_pressed_meanwhile(some, open_desk) -> None:
    async with open_desk() as app:
        await app.press("J", "down", "up", "down", "down", "down", "up", "down", "up", "ctrl+r", "down", "r")
        await app.until_text("next: start Docker and try again")
        assert app.text().count("asking docker") == 1


async def test_of_much_output_the_end_is_shown_and_where_the_rest_is(project: Path, open_desk) -> None:
    folder = make(project, 1, ["run"], code=0, output="".join(f"line {number}\n" for number in range(60_000)))
    async with open_desk(size=(140, 45)) as app:
        await app.press("J")
        await app.until_text("line 59999")
        log = app.view.query_one(screen.Log)
        assert len(log.lines) <= 5000
        size = (folder / "output.log").stat().st_size
        piece = screen._read(app.view.job, 0)
        assert piece.skipped == size - (1 << 18)
        assert piece.at == size


async def test_what_a_program_wrote_is_no_markup_and_no_escape_sequence(project: Path, open_desk) -> None:
    make(project, 1, ["run", "[red]x[/red]"], code=1, output="\x1b[31m[bold]evil\x1b]0;t\x07\nerror: [b]bad[/b]\n")
    async with open_desk() as app:
        await app.press("J")
        await app.until_text("error: [b]bad[/b]")
        assert "␛[31m[bold]evil␛]0;t␇" in app.text()
        assert "openforge run '[red]x[/red]'" in app.text()


async def test_a_job_that_ended_is_not_stopped_again(some, open_desk) -> None:
    async with open_desk() as app:
        await app.press("J", "ctrl+d")
        await app.until(lambda: "this job has ended already" in str([n.message for n in app.desk._notifications]))


async def test_no_job_yet(open_desk, project: Path) -> None:
    async with open_desk() as app:
        await app.press("J")
        await app.until_text("long work that is started in the app stands here")
        await app.press("ctrl+d", "J", "escape")
        assert app.view.MODE == "runs"


@pytest.mark.parametrize("size", SIZES)
async def test_the_command_log_shows_commands_and_their_programs(some, open_desk, snapshot, size) -> None:
    async with open_desk(size=size) as app:
        await app.press("ctrl+l")
        await app.until_text("$ openforge images build")
        snapshot(app, "command-log")


async def test_each_line_of_the_command_log_can_be_copied(some, open_desk, monkeypatch) -> None:
    async with open_desk() as app:
        copied: list[str] = []
        monkeypatch.setattr(app.desk, "copy", copied.append)
        await app.press("ctrl+l")
        await app.until_text("$ openforge images build")
        await app.press("c", "up", "k", "k", "enter")
        assert copied == ["openforge images build", "docker version --format '{{.Server.Version}}'"]
        await app.press("ctrl+l")
        assert app.view.MODE == "runs"


async def test_the_command_log_follows_what_is_started(project: Path, open_desk) -> None:
    async with open_desk() as app:
        await app.press("ctrl+l")
        await app.until_text("no command yet")
        make(project, 1, ["init"], code=0)
        await app.until_text("$ openforge init")


async def test_how_a_job_ended_is_told_wherever_one_is(project: Path, open_desk) -> None:
    async with open_desk(mode="promote") as app:
        for argv in (["init"], ["init"]):
            job = app.desk.start("configuration", argv)
            await app.until(lambda job=job: _ended(app, job))
        told = [(n.title, n.severity, n.message) for n in app.desk._notifications]
        assert ("job done", "information", "configuration\nnext: openforge doctor") in told
        [failed] = [message for title, severity, message in told if (title, severity) == ("job failed", "error")]
        assert failed.startswith("configuration: what was typed or configured is wrong\n")
        assert failed.endswith("already exists\nnext: openforge config show")


def _ended(app: Any, job: Job) -> bool:
    return job.id not in app.desk.running


async def test_the_command_log_says_what_it_cannot_read(some, open_desk, monkeypatch) -> None:
    async with open_desk() as app:
        await app.press("ctrl+l")
        await app.until_text("$ openforge images build")
        every = app.desk.jobs.all
        monkeypatch.setattr(app.desk.jobs, "all", _refuse)
        await app.until_text("jobs: Permission denied")
        monkeypatch.setattr(app.desk.jobs, "all", every)
        await app.until_text("c copies the line")


async def test_jobs_that_cannot_be_read_end_neither_the_app_nor_its_leaving(project, open_desk, monkeypatch) -> None:
    monkeypatch.setattr(Jobs, "all", _refuse)
    async with open_desk() as app:
        await app.press("J")
        await app.until_text("jobs: Permission denied")
        await app.pilot.press("q")
        await app.until(lambda: app.desk.return_code == 0)


async def test_a_job_that_another_app_forgot_may_be_moved_to(some, open_desk) -> None:
    async with open_desk() as app:
        await app.press("J")
        for folder in (some / ".openforge" / "desk" / "jobs").iterdir():
            shutil.rmtree(folder)
        await app.pilot.press("down", "down")
        await app.until_text("long work that is started in the app stands here")


def _refuse(*_: object) -> list[Job]:
    raise PermissionError(13, "Permission denied", "jobs")
