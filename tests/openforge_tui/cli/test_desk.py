"""How the app is opened from the command line."""

import subprocess
import sys
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
