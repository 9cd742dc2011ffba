"""Garbage that has grown old waits for a search that is asked for."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from openforge_tui import garbage


class Ring:
    """Refers to itself, so that only a search finds it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def settled() -> Iterator[None]:
    garbage.put_off()
    garbage.settle()
    yield
    garbage.restore()


def make_many() -> None:
    """Enough for Python to search for garbage many times."""
    for _ in range(20):
        _kept = [[] for _ in range(20_000)]


def test_old_garbage_waits_until_it_is_searched_for(settled: None) -> None:
    ring = Ring()
    for generation in (0, 1):
        gc.collect(generation)
    old = weakref.ref(ring)
    del ring
    make_many()
    assert old() is not None
    garbage.search()
    assert old() is None


def test_young_garbage_does_not_wait(settled: None) -> None:
    young = weakref.ref(Ring())
    make_many()
    assert young() is None


def test_what_was_there_is_left_out_until_the_end() -> None:
    before = gc.get_freeze_count(), gc.get_threshold()
    garbage.put_off()
    assert not gc.isenabled()
    garbage.settle()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before[0]
    garbage.restore()
    assert gc.get_threshold() == before[1]
    assert gc.get_freeze_count() == 0
