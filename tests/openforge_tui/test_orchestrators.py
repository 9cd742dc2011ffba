import json
import os
import subprocess
from pathlib import Path

import pytest

from cluster.run_lock import RunLock
from openforge.errors import InfraError
from openforge_tui.jobs import Jobs
from openforge_tui.orchestrators import pid_of, stop_orchestrator


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"pid": "x"}', '{"pid": 1e999}', "[" * 100_000])
def test_a_run_that_told_no_process_has_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "runs" / "r1").mkdir(parents=True)
        RunLock(tmp_path / "runs" / "r1").take()
        (tmp_path / "runs" / "r1" / "orchestrator.json").write_text(text)
    assert pid_of(tmp_path, "r1") is None


@pytest.mark.parametrize("pid", [0, -1, -42])
def test_a_number_that_means_many_processes_is_none(tmp_path: Path, pid: int) -> None:
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    RunLock(tmp_path / "runs" / "r1").take()
    (tmp_path / "runs" / "r1" / "orchestrator.json").write_text(json.dumps({"url": "", "token": "", "pid": pid}))
    assert pid_of(tmp_path, "r1") is None


def test_another_users_process_is_told_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(InfraError, match="another user's"):
        stop_orchestrator(Jobs(tmp_path), 4242)


def test_its_process_is_the_one_it_told(tmp_path: Path) -> None:
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    RunLock(tmp_path / "runs" / "r1").take()
    (tmp_path / "runs" / "r1" / "orchestrator.json").write_text(json.dumps({"url": "", "token": "", "pid": 42}))
    assert pid_of(tmp_path, "r1") == 42


def test_one_that_has_ended_cannot_be_stopped(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert not stop_orchestrator(Jobs(tmp_path), child.pid)
