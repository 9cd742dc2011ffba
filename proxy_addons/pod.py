"""`python -P -m proxy_addons.pod SETTINGS FOLDER ALONE_S`: the recorder as the first process of a container.

A child process is told its settings on standard input and says on standard output when it is ready. Here the settings
stand in a file, a mounted Secret; what it says goes to files in FOLDER, beside its journal. It begins once the start
is given, by whoever has put the tokenizer there. A child ends with its parent; here the parent is on another machine,
and it ends when nobody has touched `alive` in FOLDER for ALONE_S.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from proxy_addons.__main__ import main


def prepare(settings: Path, folder: Path) -> None:
    """Wait for the start, then make the standard streams what the recorder expects."""
    gate = folder / "start"
    with suppress(FileExistsError):
        os.mkfifo(gate)
    waiting = os.open(gate, os.O_RDONLY)  # until somebody opens it to write
    gate.rename(folder / "started")
    os.close(waiting)
    reading, writing = os.pipe()  # its write end stays open for good: at the end of input the recorder would end
    os.write(writing, settings.read_bytes().strip() + b"\n")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(reading, 0)
    os.dup2(os.open(folder / "ready", flags, 0o644), 1)
    os.dup2(os.open(folder / "recorder.log", flags, 0o644), 2)


def end_when_alone(alive: Path, alone_s: float) -> None:
    """Runs in a thread of its own. Ends this process politely."""
    alive.touch()
    while time.time() - alive.stat().st_mtime < alone_s:
        time.sleep(min(60.0, alone_s / 4))
    print(f"no orchestrator has been here for {alone_s:g} s", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
    watched = (Path(sys.argv[2]) / "alive", float(sys.argv[3]))
    threading.Thread(target=end_when_alone, args=watched, name="alone", daemon=True).start()
    sys.exit(main())
