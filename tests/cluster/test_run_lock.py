"""Who holds a run, seen from beside it."""

import shutil
import threading
from pathlib import Path

from cluster.run_lock import RunLock, is_held


def test_a_run_is_held_from_take_to_drop_and_its_copy_never(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert not is_held(run)
    lock = RunLock(run)
    lock.take()
    shutil.copytree(run, tmp_path / "copy")
    assert (is_held(run), is_held(tmp_path / "copy")) == (True, False)
    lock.drop()
    assert not is_held(run)
    again = RunLock(run)  # looking took nothing away
    again.take()
    again.drop()


def test_who_looks_all_the_time_keeps_nobody_from_taking_the_run(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.take()
    lock.drop()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.0002):
            is_held(tmp_path)

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    try:
        for _ in range(300):
            lock.take()
            lock.drop()
    finally:
        stop.set()
        for thread in looking:
            thread.join()
