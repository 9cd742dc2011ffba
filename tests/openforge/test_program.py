"""Programs that end well, badly, late or not at all."""

import sys
import time
from pathlib import Path

import pytest

from openforge.errors import InfraError
from openforge.program import run_program


def test_lines_come_one_by_one_and_whole() -> None:
    seen: list[str] = []
    output = run_program([sys.executable, "-c", "print('a'); print('b')"], step="toy", on_line=seen.append)
    assert seen == ["a", "b"]
    assert output == "a\nb"


def test_a_failure_names_the_step_and_shows_the_last_lines() -> None:
    with pytest.raises(InfraError, match=r"(?s)toy: .*exit code 3.*the reason"):
        run_program([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], step="toy")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(InfraError, match="toy: cannot run no-such-program"):
        run_program(["no-such-program"], step="toy")


def test_a_program_that_takes_too_long_is_stopped_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(InfraError, match=r"did not end in 0\.5 s"):
        run_program(["sh", "-c", f"sleep 60 & echo $! > {pid_file}; wait"], step="toy", timeout_s=0.5)
    assert time.monotonic() - began < 10
    child = Path("/proc") / pid_file.read_text().strip()
    while child.exists():  # init reaps it a moment later; the test's own time limit ends a wait in vain
        time.sleep(0.02)
