"""The overview over real answers of a bare machine; over made-up ones where a picture must be the same everywhere."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from openforge.errors import InfraError
from openforge_tui import overview
from openforge_tui.overview import Load, Part, Row
from openforge_tui.screens import overview as screen
from tests.openforge_tui.screens.conftest import SIZES

FOREVER = ("logs", "--policy", "--follow")
FOUND = {
    "machine": [
        ("python", "ok", "3.12.1", ""),
        ("sandbox", "note", "bubblewrap is not installed; rollouts run without walls", "apt-get install bubblewrap"),
        ("memory", "missing", "1.0 GiB free; 3 GiB is the least", "close other programs, or lower run.concurrency"),
        ("configuration", "note", "no openforge.toml here; the defaults hold", "openforge init"),
    ],
    "cluster": [
        ("docker", "ok", "it answers", ""),
        ("kind openforge", "ok", "ready", ""),
        ("node openforge-control-plane", "ok", "2 cores, 16Gi memory, 250 pods; kubelet v1.36.1", ""),
    ],
    "images": [("openforge/harness-pi:0123456789ab", "ok", "412 MB, 3 d old, harness", "")],
    "policy": [("starter", "ok", "this configuration's; /cache/policies/starter-0123", "")],
    "live": [("r06p3bn2fbdm", "ok", "2 running, 10 done; 2 model calls in flight; sandbox bwrap", "")],
    "disk": [("store", "ok", "5 MiB, 18.2 GiB free; /project/.openforge", "")],
}


def parts_of(found: dict[str, Any]) -> tuple[Part, ...]:
    def part(name: str, rows: Any) -> Part:
        made = [dict(zip(("part", "name", "state", "found", "next"), (name, *row), strict=True)) for row in rows]
        return Part(name, 60.0, lambda load: made)

    return tuple(part(name, rows) for name, rows in found.items())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPENFORGE_CACHE", str(folder))
    return folder


@pytest.fixture
def bare(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing is installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


async def all_asked(app: Any) -> None:
    await app.until(lambda: len(app.view._found) == len(screen.PARTS) and not app.view._asking)
    await app.settled()


def told(app: Any) -> str:
    """What toasts say."""
    return "\n".join(f"{note.title}: {note.message}" for note in app.desk._notifications)


async def go_to(app: Any, key: str) -> None:
    assert app.view.query_one(screen.Grid).go_to(key)
    await app.settled()


@pytest.mark.parametrize("size", SIZES)
async def test_what_there_is_stands_in_parts(open_desk, snapshot, monkeypatch, size) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    monkeypatch.setattr(screen, "duration", lambda seconds: "3 s")
    async with open_desk(mode="overview", size=size) as app:
        await all_asked(app)
        await go_to(app, "machine configuration 1")
        snapshot(app, "overview")
        await app.press("question_mark")
        snapshot(app, "overview-help")


async def test_the_first_picture_waits_for_nothing_and_a_part_that_hangs_holds_up_itself_alone(
    open_desk, monkeypatch
) -> None:
    done = threading.Event()

    def hang(load: Load) -> list[Row]:
        done.wait(30)
        return []

    parts = [Part("cluster", 60.0, hang) if part.name == "cluster" else part for part in parts_of(FOUND)]
    monkeypatch.setattr(screen, "PARTS", tuple(parts))
    async with open_desk(mode="overview") as app:
        await app.until_text("harness-pi:")
        assert "asking: cluster" in app.text()
        assert "… asking" in app.text()
        assert app.view.loads > 0
        done.set()
        await app.until(lambda: "asking" not in app.text())


async def test_a_part_that_fails_says_why_and_the_others_stand(open_desk, monkeypatch, project: Path) -> None:
    def refuse(load: Load) -> list[Row]:
        raise InfraError("docker went away", hint="openforge doctor")

    def fault(load: Load) -> list[Row]:
        raise ValueError("not thought of")

    made = {"cluster": refuse, "images": fault}
    parts = [part._replace(ask=made.get(part.name, part.ask)) for part in parts_of(FOUND)]
    monkeypatch.setattr(screen, "PARTS", tuple(parts))
    async with open_desk(mode="overview") as app:
        await all_asked(app)
        text = app.text()
        assert "docker went away" in text
        assert "ValueError: not thought of" in text
        assert "starter" in text
    assert "not thought of" in (project / ".openforge" / "desk" / "faults.log").read_text()


async def test_on_a_bare_machine_it_says_what_is_missing_and_what_to_do(bare, open_desk) -> None:
    async with open_desk(mode="overview") as app:
        await all_asked(app)
        text = app.text()
        assert "bubblewrap is not installed" in text
        assert "docker is not on PATH" in text
        assert "starter is not made yet" in text
        assert "openforge policy make starter" in text
        assert "no openforge.toml here" in text
        assert "none is going on" in text
        await go_to(app, "machine sandbox 1")
        await app.press("enter")  # what this app does not run is shown, to be copied
        await app.until_text("Type this in a shell (c copies it):")
        assert "apt-get install bubblewrap" in app.text()
        await app.press("escape")
        await go_to(app, "machine git 1")
        await go_to(app, "machine python 1")
        await app.press("enter")
        await app.until(lambda: "there is nothing to mend here" in told(app))


async def test_a_finding_is_mended_by_its_command_and_goes_away(cache, open_desk, project: Path) -> None:
    async with open_desk(mode="overview") as app:
        await all_asked(app)
        await go_to(app, "machine configuration 1")
        assert "next: openforge init   enter does it, c copies it" in app.text()
        await app.press("enter")
        await app.until_text("Run `openforge init`?")
        await app.press("n")
        assert app.desk.jobs.all() == []
        await app.press("enter", "y")
        await app.until(lambda: (project / "openforge.toml").exists())
        await app.until(lambda: "next: openforge doctor" in told(app))
        await app.until(lambda: "no openforge.toml here" not in app.text())
        [job] = app.desk.jobs.all()
        assert (job.state, job.title) == ("done", "configuration")


async def test_the_progress_of_a_job_is_seen_and_it_is_stopped(cache: Path, open_desk, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    (cache / "servers").mkdir(parents=True)
    log = cache / "servers" / "one.log"
    log.write_text("the first line\n")
    async with open_desk(mode="overview") as app:
        app.desk.start("follow", FOREVER)
        await app.until_text("J shows it")
        assert "▶ follow, " in app.text()  # in the first line that is drawn, too
        await app.until_text("the first line   J shows it")
        with log.open("a") as file:
            file.write("step 2 of 3\n")
        await app.until_text("step 2 of 3   J shows it")
        await app.press("J")
        await app.until_text("1 running, 1 in all")
        assert "the first line\n step 2 of 3" in app.text()
        await app.press("ctrl+d", "y")
        await app.until_text("exit code 130: interrupted")
        await app.press("escape")
        await app.until(lambda: "▶ follow" not in app.text())


KEYS = {
    "u": ("Run `openforge up`?", ["up"]),
    "D": ("Run `openforge down`?", ["down"]),
    "b": ("Run `openforge images build`?", ["images", "build"]),
    "v": ("Run `openforge tasks validate`?", ["tasks", "validate"]),
}


@pytest.mark.parametrize("key", KEYS)
async def test_each_action_asks_with_its_exact_command(open_desk, monkeypatch, key: str) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    question, argv = KEYS[key]
    async with open_desk(mode="overview") as app:
        started: list[Any] = []
        monkeypatch.setattr(app.desk, "start", lambda title, words: started.append(list(words)))
        await app.press(key)
        await app.until_text(question)
        await app.press("escape")
        assert started == []
        await app.press(key, "y")
        await app.until(lambda: started == [argv])


async def test_a_harness_is_chosen_and_installed(open_desk, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    async with open_desk(mode="overview") as app:
        started: list[Any] = []
        monkeypatch.setattr(app.desk, "start", lambda title, words: started.append((title, list(words))))
        await app.press("i")
        await app.until_text("Install which harness?")
        assert "comes with OpenForge" in app.text()
        await app.press("down", "enter")
        await app.until(lambda: bool(started))
        [(title, words)] = started
        assert words[:2] == ["harness", "install"]
        assert title == f"install {words[2]}"


async def test_read_only_switches_every_action_off(open_desk, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    async with open_desk(mode="overview", readonly=True) as app:
        await all_asked(app)
        await go_to(app, "machine configuration 1")
        footer = app.text().splitlines()[-1]
        assert not [word for word in ("up", "do it", "build", "run") if word in footer]
        assert "read only" in app.text()
        assert "enter does it" not in app.text()
        await app.press("u", "D", "b", "i", "v", "r", "enter")
        assert app.view is app.desk.screen
        assert isinstance(app.view, screen.OverviewScreen)
        assert app.desk.jobs.all() == []


REMOTE = """version = 1
[target.big]
kind = "kubernetes"
context = "gpu-cluster"
[target.big.policy]
base_url = "http://policy.example:8000"
"""


async def test_what_is_done_to_a_cluster_elsewhere_asks_for_its_name(open_desk, project: Path, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    (project / "openforge.toml").write_text(REMOTE)
    async with open_desk(mode="overview", target="big") as app:
        started: list[Any] = []
        monkeypatch.setattr(app.desk, "start", lambda title, words: started.append(list(words)))
        assert app.view.header.has_class("-remote")
        await app.press("u")
        await app.until_text("Type big to go on")
        await app.press(*"yes", "enter")
        assert started == []
        for _ in "yes":
            await app.press("backspace")
        await app.press(*"big", "enter")
        await app.until(lambda: started == [["up"]])
        await app.press("D")
        await app.until(lambda: "does not make, and does not remove" in told(app))
        assert started == [["up"]]


async def test_the_header_of_a_cluster_elsewhere_has_another_colour(open_desk, project: Path, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    (project / "openforge.toml").write_text(REMOTE)
    colours = []
    for target in ("local", "big"):
        async with open_desk(mode="overview", target=target) as app:
            assert app.view.header.has_class("-remote") is (target == "big")
            colours.append(app.view.header.styles.background)
    assert colours[0] != colours[1]


async def test_docker_that_comes_while_the_app_is_open_is_seen(bare, tmp_path: Path, open_desk) -> None:
    async with open_desk(mode="overview") as app:
        await all_asked(app)
        assert "docker is not on PATH" in app.text()
        program = tmp_path / "bin" / "docker"
        program.write_text('#!/bin/sh\n[ "$1" = version ] && echo 29.0\nexit 0\n')
        program.chmod(0o755)
        await app.press("ctrl+r")
        await app.until_text("it answers")
        await app.until_text("none was built yet")


async def test_a_docker_that_hangs_is_given_up(bare, tmp_path: Path, open_desk, monkeypatch) -> None:
    program = tmp_path / "bin" / "docker"
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr("cluster.docker._ANSWER_S", 0.3)
    async with open_desk(mode="overview") as app:
        await all_asked(app)
        assert "did not end in 0.3 s" in app.text()


async def test_leaving_says_what_goes_on_without_the_app(cache: Path, open_desk, monkeypatch, capfd) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    (cache / "servers").mkdir(parents=True)
    (cache / "servers" / "one.log").write_text("the first line\n")
    async with open_desk(mode="overview") as app:
        job = app.desk.start("follow", FOREVER)
        await app.until_text("the first line   J shows it")
        await app.pilot.press("q")
    assert "still going on, without the app:\n  openforge logs --policy --follow   (since " in capfd.readouterr().err
    async with open_desk(mode="overview") as again:  # a later app finds it
        assert [one.running for one in again.desk.jobs.all()] == [True]
        again.desk.jobs.stop(job)
        await again.until(lambda: "job stopped" in told(again))
        assert again.desk._left_running() is None


async def test_a_filter_says_how_much_it_hides(open_desk, monkeypatch) -> None:
    monkeypatch.setattr(screen, "PARTS", parts_of(FOUND))
    async with open_desk(mode="overview") as app:
        await all_asked(app)
        await app.press("slash", *"-l state=missing", "enter")
        await app.until_text("1 of 11 rows")
        assert "python" not in app.text().splitlines()[4]


def test_the_command_prints_the_parts(bare, project: Path, capfd) -> None:
    import json

    from openforge_tui.cli.app import main

    code = main(["doctor", "--all", "-o", "json"])
    rows = json.loads(capfd.readouterr().out)
    assert {row["part"] for row in rows} == {part.name for part in overview.PARTS}
    assert code == (5 if any(row["state"] == "missing" for row in rows) else 0)
    assert os.environ["PATH"].endswith("bin")
