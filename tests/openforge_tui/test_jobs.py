"""Jobs are real `openforge` commands in real processes: how they end, and what an app that comes later finds."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.detached import Detached, start_ticks
from openforge.errors import InfraError
from openforge_tui import jobs as jobs_module
from openforge_tui.jobs import Job, Jobs, duration, last_line, outcome, programs, run_id_of

FOREVER = ("logs", "--policy", "--follow")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """The jobs of an empty project whose cache holds one policy's log, so that FOREVER has something to follow."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "servers").mkdir(parents=True)
    (tmp_path / "cache" / "servers" / "one.log").write_text("the first line\n")
    (tmp_path / "project").mkdir()
    return Jobs(tmp_path / "desk" / "jobs", cwd=tmp_path / "project")


def wait(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.02)


def ended(jobs: Jobs, job: Job) -> Job:
    wait(lambda: not jobs.again(job).running)
    return jobs.again(job)


def following(jobs: Jobs) -> Job:
    job = jobs.start("follow", FOREVER)
    wait(lambda: last_line(job) == "the first line")
    return job


def test_a_job_that_ends_says_so_with_its_next_step(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.start("init", ["init"])
    assert job.running
    now = ended(jobs, job)
    assert (now.state, now.exit_code) == ("done", 0)
    assert now.ended_at is not None
    assert now.ended_at >= now.started_at
    assert outcome(now) == ("ok", "", "openforge doctor", "")
    assert (tmp_path / "project" / "openforge.toml").is_file()


def test_a_job_that_fails_keeps_its_error_and_says_what_the_code_means(jobs: Jobs) -> None:
    now = ended(jobs, jobs.start("show", ["config", "validate", "--set", "run.smples=1"]))
    assert (now.state, now.exit_code) == ("failed", 2)
    told = outcome(now)
    assert told.meaning == "what was typed or configured is wrong"
    assert "run.smples" in told.error


@pytest.mark.parametrize(("code", "result"), [(0, "36 rollouts, reward 0.61"), (1, "")])
def test_what_came_of_a_job_is_what_it_said_last_of_that(tmp_path: Path, code: int, result: str) -> None:
    log = tmp_path / "output.log"
    log.write_text(
        "done: another\nharness  reward\nreact  0.61\ndone: 36 rollouts, reward 0.61\nnext: openforge show\n"
    )
    job = Job(tmp_path, "run", ("run",), Detached(1, 1), 0.0, code, 1.0, running=False)
    assert (outcome(job).result, outcome(job).next) == (result, "openforge show")


def test_a_job_is_stopped_in_good_order(jobs: Jobs) -> None:
    job = following(jobs)
    assert jobs.again(job).state == "running"
    jobs.stop(job)
    now = ended(jobs, job)
    assert (now.state, now.exit_code) == ("stopped", 130)
    assert last_line(now) == "interrupted"


def test_a_job_that_is_killed_with_all_of_it_is_lost(jobs: Jobs) -> None:
    job = following(jobs)
    os.killpg(job.process.pid, signal.SIGKILL)
    now = ended(jobs, job)
    assert (now.state, now.exit_code) == ("lost", None)
    assert "killed" in outcome(now).meaning


def test_when_only_its_first_process_is_killed_the_command_ends_in_good_order(jobs: Jobs) -> None:
    job = following(jobs)
    os.kill(job.process.pid, signal.SIGKILL)
    now = ended(jobs, job)
    assert now.state == "lost"
    assert last_line(now) == "interrupted"


def test_a_job_outlives_its_parent_and_a_later_app_finds_it(jobs: Jobs, tmp_path: Path) -> None:
    source = f"""
from pathlib import Path
from openforge_tui.jobs import Jobs
Jobs(Path({str(tmp_path / "desk" / "jobs")!r}), cwd=Path.cwd()).start("follow", {FOREVER!r})
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
    [job] = jobs.all()
    wait(lambda: last_line(job) == "the first line")
    assert jobs.again(job).running
    jobs.stop(job)
    assert ended(jobs, job).state == "stopped"


def test_two_apps_at_once_share_the_jobs(jobs: Jobs, tmp_path: Path) -> None:
    other = Jobs(tmp_path / "desk" / "jobs", cwd=tmp_path / "project")
    mine, theirs = following(jobs), following(other)
    assert mine.id != theirs.id
    assert {job.id for job in jobs.all() if job.running} == {mine.id, theirs.id}
    jobs.stop(theirs)
    assert ended(other, theirs).state == "stopped"
    jobs.stop(mine)
    assert ended(other, mine).state == "stopped"


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(jobs: Jobs) -> None:
    job = ended(jobs, jobs.start("init", ["init"]))
    wait(lambda: not job.process.alive())
    (job.folder / "exit").unlink()  # as after a kill
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (job.folder / "pid").write_text(f"{stranger.pid} {job.process.start_ticks}")
        [found] = jobs.all()
        assert found.state == "lost"
        jobs.stop(found)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(timeout=0.2)
    finally:
        stranger.terminate()
        stranger.wait()


def test_the_oldest_that_ended_are_forgotten_and_none_that_runs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "KEPT", 3)
    first = following(jobs)
    later = [ended(jobs, jobs.start("show", ["config", "schema"])) for _ in range(4)]
    kept = [job.id for job in jobs.all()]
    assert kept == [later[3].id, later[2].id, later[1].id, first.id]
    jobs.stop(first)
    assert ended(jobs, first).state == "stopped"


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="cannot start `openforge init`"):
        Jobs(tmp_path / "file" / "jobs").start("init", ["init"])


def test_a_half_written_folder_is_no_job(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "desk" / "jobs" / "00001").mkdir(parents=True)
    (tmp_path / "desk" / "jobs" / "00001" / "job.json").write_text('{"title": "half')
    assert jobs.all() == []
    assert jobs.start("init", ["init"]).id == "00002"


@pytest.mark.parametrize(
    "about",
    [
        *("[" * 100_000, "[]", '{"title": "t", "argv": ["init"], "started_at": "today"}'),
        *(f'{{"title": "t", "argv": ["init"], "started_at": {at}}}' for at in ("NaN", "Infinity", "1e300", "null")),
    ],
)
def test_a_folder_that_holds_nonsense_is_no_job(tmp_path: Path, about: str) -> None:
    folder = tmp_path / "00001"
    folder.mkdir()
    for name, text in (("job.json", about), ("pid", "1 1"), ("output.log", "")):
        (folder / name).write_text(text)
    assert Jobs(tmp_path).all() == []


def test_a_job_whose_folder_was_deleted_does_not_run_for_ever(jobs: Jobs) -> None:
    job = following(jobs)
    shutil.rmtree(job.folder)
    assert jobs.again(job).running
    jobs.stop(job)
    wait(lambda: not jobs.again(job).running)


def test_a_full_disk_leaves_no_command_that_nobody_can_find(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, started = Path.write_text, []

    def full(path: Path, text: str) -> int:
        if path.name == "pid":
            started.append(int(text.split()[0]))
            raise OSError(28, "No space left on device")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InfraError, match="No space left"):
        jobs.start("follow", FOREVER)
    wait(lambda: jobs.all() == [] and start_ticks(started[0]) < 0)
    assert list((tmp_path / "desk" / "jobs").iterdir()) == []


def test_the_base_words_stand_before_every_command(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", ("--target", "kind"), tmp_path)
    assert jobs.words(["run"]) == ("--target", "kind", "run")


def test_a_project_folder_with_a_module_of_our_name_does_not_stand_in_for_it(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "project" / "openforge_tui.py").write_text("raise SystemExit(9)")
    assert ended(jobs, jobs.start("schema", ["config", "schema"])).exit_code == 0


def test_the_programs_of_a_job_are_kept_as_they_would_be_typed(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text("#!/bin/sh\necho no daemon; exit 1\n")
    (tools / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    now = ended(jobs, jobs.start("images", ["images", "ls"]))
    assert (now.exit_code, outcome(now).error) == (3, "docker does not answer: no daemon")
    [line] = programs(now)
    clock, _, command = line.partition(" ")
    assert time.strptime(clock, "%H:%M:%S")
    assert shlex.split(command) == ["docker", "version", "--format", "{{.Server.Version}}"]


def test_the_run_of_a_job_is_known_once_it_has_said_so(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"title": "run", "argv": ["run"], "started_at": 0}))
    job = Job(tmp_path, "run", ("run",), Detached(1, 1), 0)
    assert run_id_of(job) is None
    job.log.write_text("policy: ready after 3 s\nrun r06p3bn2fbdm: 2 rollouts; follow with `openforge status`\n")
    assert run_id_of(job) == "r06p3bn2fbdm"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (-3, "0 s")]
)
def test_durations_are_said_as_a_person_would(seconds: float, said: str) -> None:
    assert duration(seconds) == said
