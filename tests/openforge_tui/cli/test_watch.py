"""`--watch` from outside: a program that goes on until it is interrupted."""

import json
import signal
import subprocess
import sys
from pathlib import Path


def test_rows_are_printed_again_when_they_changed(run, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "openforge_tui", "rollouts", "latest", "--watch", "-o", "jsonl", "--filter", "new"]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run.rollout(task="new", sample=0)
        assert json.loads(process.stdout.readline())["rollout_id"] == f"{run.run_id}.new.react.0"
        run.state(f"{run.run_id}.new.pi.0", "running")
        assert json.loads(process.stdout.readline())["rollout_id"] == f"{run.run_id}.new.pi.0"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
