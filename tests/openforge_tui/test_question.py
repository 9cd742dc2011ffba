import time
from pathlib import Path

import pytest

from openforge.errors import OpenForgeError
from openforge_tui import question
from openforge_tui.question import Question

pytestmark = pytest.mark.contract


def test_all_rows_that_there_are(store_root: Path) -> None:
    answer = Question(store_root, "SELECT * FROM range(20000)").ask()
    assert (answer.table.num_rows, answer.cut, answer.by_size) == (20000, False, False)


@pytest.mark.parametrize(("most", "cut"), [(19_999, True), (20_000, False)])
def test_rows_beyond_the_most_are_said_to_be_there(
    store_root: Path, monkeypatch: pytest.MonkeyPatch, most: int, cut: bool
) -> None:
    monkeypatch.setattr(question, "MAX_ROWS", most)
    answer = Question(store_root, "SELECT * FROM range(20000)").ask()
    assert (answer.table.num_rows, answer.cut, answer.by_size) == (most, cut, False)


def test_large_rows_are_cut_by_their_size(store_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "MAX_BYTES", 1 << 20)
    answer = Question(store_root, "SELECT repeat('x', 1000) AS x FROM range(100000)").ask()
    assert answer.cut
    assert answer.by_size
    assert 0 < answer.table.num_rows < 20_000


def test_no_rows_have_columns(store_root: Path) -> None:
    assert Question(store_root, "SELECT run_id FROM runs").ask().table.column_names == ["run_id"]


def test_stopped_before_its_process_has_begun_it_is_stopped_all_the_same(store_root: Path) -> None:
    asked = Question(store_root, "SELECT count(*) FROM range(100000) a, range(1000000) b WHERE a.range * b.range = 3")
    before = time.monotonic()
    asked.stop()
    with pytest.raises(OpenForgeError, match="stopped"):
        asked.ask()
    assert time.monotonic() - before < 20
