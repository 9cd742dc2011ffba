"""Runs made up for the store's tests."""

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `synthetic`, which the benchmark reads as well

from synthetic import SyntheticRun

from openforge.journal.records import JournalError


@pytest.fixture
def make_run(store_root: Path) -> Iterator[Callable[..., SyntheticRun]]:
    """Start a made-up run in this test's store; closed at the end of the test."""
    made: list[SyntheticRun] = []

    def make(run: str = "r0000000aaa", **options: int) -> SyntheticRun:
        made.append(SyntheticRun(store_root, run, **options))
        return made[-1]

    yield make
    for run in made:
        with suppress(JournalError):  # some tests take its files away
            run.close()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder where no file gets longer than 16 bytes, as long as the test lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
