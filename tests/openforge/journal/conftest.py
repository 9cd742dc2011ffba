"""A run folder, and writers that are closed when a test ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter

type MakeWriter = Callable[..., JournalWriter]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "r1"


@pytest.fixture
def make_writer(run_dir: Path) -> Iterator[MakeWriter]:
    writers: list[JournalWriter] = []

    def make(recorder_id: str = "rec-a", **options: Any) -> JournalWriter:
        writers.append(JournalWriter(run_dir, RecorderId(recorder_id), RunId("r1"), **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


@pytest.fixture
def metric() -> Callable[[JournalWriter, int], int]:
    """Append one small record; returns its seq."""
    return lambda writer, step: writer.append("metric", step=step, name="loss", value=0.5)
