"""How often a recorder that dies is started again; the process is replaced, the rest is real."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import live_recorder
from cluster.live_recorder import LiveRecorder
from cluster.recorder import RecorderError


class Dead:
    """Starts, and is dead at once."""

    def __init__(self, *_: Any) -> None:
        self.died = asyncio.Event()

    async def start(self) -> None:
        self.died.set()

    async def stop(self) -> None:
        pass


async def test_deaths_in_a_row_are_too_many_and_the_same_number_over_days_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(live_recorder, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def reached(ready: object) -> None: ...

    recorder = LiveRecorder(Dead, reached, lambda text: None)
    for clock[0] in (0, 4000, 8000, 12000, 16000, 16100, 16200, 16300):
        await recorder.get()
    assert recorder.starts == 8
    clock[0] = 16400
    with pytest.raises(RecorderError, match="died 4 times within 400 s"):
        await recorder.get()
    clock[0] = 16601
    await recorder.get()
    assert recorder.starts == 9
