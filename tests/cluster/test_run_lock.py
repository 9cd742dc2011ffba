"""Who holds a run, seen from beside it."""

import shutil
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
