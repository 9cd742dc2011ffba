"""How the app is opened from the command line."""

import os
import pty
import re
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from openforge_tui import app as app_
from openforge_tui import web as web_
from openforge_tui.cli import settings
from openforge_tui.cli.app import main


@pytest.mark.parametrize("typed", [["--readonly", "app", "runs"], ["app", "runs", "--readonly"], ["app", "runs"]])
def test_readonly_holds_before_and_after_the_verb(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[app_.Opening] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEXTUAL_DRIVER", "one that reads no terminal")
    monkeypatch.setattr(app_, "open_desk", seen.append)
    assert main(typed) == 0
    assert [(opening.readonly, opening.mode) for opening in seen] == [("--readonly" in typed, "runs")]
    settings.reset()


@pytest.mark.parametrize("typed", [["--readonly", "web"], ["web", "--readonly"]])
def test_readonly_reaches_the_app_in_the_browser(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    async def serve(argv: list[str], **_: object) -> None:
        seen.append(argv)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(web_, "serve", serve)
    assert main(typed) == 0
    assert seen == [[sys.executable, "-m", "openforge_tui", "app", "overview", "--readonly"]]
    settings.reset()


def test_readonly_before_another_verb_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--readonly", "runs"]) == 2
    assert "--readonly is for the app" in capfd.readouterr().err
    settings.reset()


def test_without_a_terminal_it_says_so_and_ends(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "openforge_tui", "--project", str(tmp_path), "app"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 2
    assert "error: the app needs a terminal" in found.stderr
    assert found.stdout == ""


def in_terminal(term: str, project: Path) -> tuple[int, str]:
    """The app opened in a terminal of that name and left by `q`: its exit code, and all that it drew."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
    app = subprocess.Popen(
        [sys.executable, "-m", "openforge_tui", "--project", str(project), "app", "runs"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env={**env, "TERM": term},
        start_new_session=True,
    )
    os.close(theirs)
    drawn = b""
    with suppress(OSError):  # it has ended
        while some := os.read(ours, 1 << 16):
            drawn += some
            if b"no runs yet" in drawn:
                os.write(ours, b"q")
    os.close(ours)
    return app.wait(30), drawn.decode(errors="replace")


def test_on_a_terminal_that_only_takes_lines_it_says_so_and_draws_nothing(tmp_path: Path) -> None:
    code, drawn = in_terminal("dumb", tmp_path)
    assert code == 2
    assert "TERM=dumb says that this one cannot" in drawn
    assert "\x1b" not in drawn


@pytest.mark.parametrize(("term", "colours"), [("vt100", False), ("linux", True), ("no-such-terminal", True)])
def test_colours_are_used_where_the_terminal_has_them(tmp_path: Path, term: str, colours: bool) -> None:
    code, drawn = in_terminal(term, tmp_path)
    assert (code, "no runs yet" in drawn) == (0, True)
    used = {tuple(map(int, rgb)) for rgb in re.findall(r"8;2;(\d+);(\d+);(\d+)", drawn)}
    basic = set(map(int, re.findall(r"\x1b\[(?:\d+;)*(9[1-6]|3[1-6])(?:;|m)", drawn)))
    assert bool(basic or any(len(set(rgb)) > 1 for rgb in used)) is colours
