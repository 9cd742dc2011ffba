import time
from pathlib import Path

import pytest

from openforge.program import run_program
from openforge.program_log import PROGRAM_LOG, note_program


def test_a_program_is_noted_as_it_would_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRAM_LOG, str(tmp_path / "log"))
    run_program(["echo", "two words", "a\nb"], step="toy")
    run_program(["true"], step="what happens for each rollout", brief=True)
    [line] = (tmp_path / "log").read_text().splitlines()
    clock, _, command = line.partition(" ")
    assert time.strptime(clock, "%H:%M:%S")
    assert command == "echo 'two words' 'a⏎b'"


def test_no_secret_is_noted_and_what_is_cut_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRAM_LOG, str(tmp_path / "log"))
    note_program(["curl", "--header", "authorization: bearer abcdef0123456789"])
    note_program(["docker", "build", "--build-arg", "API_KEY=abcdef0123456789"])
    note_program(["echo", "x" * 10_000])
    text = (tmp_path / "log").read_text()
    assert "abcdef0123456789" not in text
    assert text.count("[hidden]") == 2
    assert text.endswith("xx …\n")
    assert len(text) < 5000


def test_a_log_that_cannot_be_written_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRAM_LOG, str(tmp_path / "no folder" / "log"))
    assert run_program(["echo", "done"], step="toy") == "done"
    monkeypatch.delenv(PROGRAM_LOG)
    note_program(["echo"])
    assert list(tmp_path.iterdir()) == []
