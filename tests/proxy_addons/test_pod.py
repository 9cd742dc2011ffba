"""The recorder as the first process of a container: it ends when nobody is there any more.

That it waits for its start is in tests/cluster/test_recorder_link.py, with who gives it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_ends_once_nobody_has_been_there_for_long_and_not_before(tmp_path: Path) -> None:
    script = (
        "import signal, threading\nfrom pathlib import Path\nfrom proxy_addons.pod import end_when_alone\n"
        "threading.Thread(target=end_when_alone, args=(Path('alive'), 0.6), daemon=True).start()\nsignal.pause()"
    )
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (tmp_path / "alive").exists():
            assert time.monotonic() < began + 20
            time.sleep(0.01)
        for _ in range(20):
            (tmp_path / "alive").touch()
            time.sleep(0.05)
        assert process.poll() is None  # after a second, and it is left alone for 0.6 s at most
        _, said = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
    assert "no orchestrator has been here for 0.6 s" in said
