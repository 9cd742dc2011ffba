import json
import threading
from pathlib import Path

import pytest

from openforge.errors import InfraError
from openforge_tui.history import KEPT, History


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "desk" / "history.jsonl"


def asked(path: Path) -> list[str]:
    return [past.sql for past in History(path).newest()]


def test_the_newest_comes_first_and_each_once(path: Path) -> None:
    assert asked(path) == []
    for sql in ("select 1", "select\n2", "select 1"):
        History(path).add(sql)
    assert asked(path) == ["select 1", "select\n2"]


def test_lines_that_are_none_are_passed_over_and_a_torn_one_spoils_no_other(path: Path) -> None:
    History(path).add("select 1")
    with path.open("ab") as file:
        file.write(b'\xff\x00garbage\n[]\n{"sql": 3}\n{"at": "x", "sql": "y"}\n' + b"[" * 100_000 + b'\n{"sql": "torn')
    History(path).add("select 2")
    assert asked(path) == ["select 2", "select 1"]


def test_the_last_ones_are_kept_and_the_file_stays_small(path: Path) -> None:
    for number in range(6 * KEPT):
        History(path).add(f"select {number}")
    assert asked(path) == [f"select {number}" for number in reversed(range(5 * KEPT, 6 * KEPT))]
    assert len(path.read_bytes().splitlines()) <= 5 * KEPT


def test_apps_that_run_at_once_lose_nothing(path: Path) -> None:
    def add(app: int) -> None:
        for number in range(20):
            History(path).add(f"select {app}, {number}")

    apps = [threading.Thread(target=add, args=[app]) for app in range(4)]
    for app in apps:
        app.start()
    for app in apps:
        app.join()
    assert set(asked(path)) == {f"select {app}, {number}" for app in range(4) for number in range(20)}
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_place_that_cannot_be_written_is_named(path: Path) -> None:
    path.parent.write_text("a file, not a folder")
    with pytest.raises(InfraError, match=r"history\.jsonl cannot be written"):
        History(path).add("select 1")
    with pytest.raises(InfraError, match=r"history\.jsonl cannot be read"):
        History(path).newest()
