"""How many sandboxes start at once."""

import asyncio
import time

import pytest

from cluster.start_gate import StartGate


class Place:
    """A machine that starts so many sandboxes a second, one after the other, each after a least time."""

    def __init__(self, each_s: float, least_s: float) -> None:
        self.each_s, self.least_s, self.free_s, self.at_once = each_s, least_s, 0.0, 0
        self.most = 0

    async def start(self) -> None:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        now_s = time.monotonic()
        self.free_s = max(now_s, self.free_s) + self.each_s
        await asyncio.sleep(max(self.least_s, self.free_s - now_s))
        self.at_once -= 1


async def through(gate: StartGate, place: Place) -> float:
    began_s = time.monotonic()
    async with gate.turn():
        waited_s = time.monotonic() - began_s
        await place.start()
    return waited_s


async def test_a_place_with_room_for_all_is_soon_asked_for_all() -> None:
    gate, place = StartGate(500), Place(0.0, 0.05)
    began_s = time.monotonic()
    await asyncio.gather(*(through(gate, place) for _ in range(500)))
    assert place.most > 100
    assert time.monotonic() - began_s < 1.0


async def test_a_place_that_becomes_slow_is_asked_for_fewer_and_loses_no_time_by_it() -> None:
    gate, place = StartGate(100), Place(0.02, 0.02)
    began_s = time.monotonic()
    await asyncio.gather(*(through(gate, place) for _ in range(100)))
    assert 4 <= gate.window <= 16
    assert place.most <= 30
    assert time.monotonic() - began_s < 100 * 0.02 * 1.5


async def test_what_fails_halves_the_window_once_and_never_closes_it() -> None:
    gate = StartGate(100)

    async def fail() -> None:
        async with gate.turn():
            await asyncio.sleep(0.01)
            raise RuntimeError

    await asyncio.gather(*(fail() for _ in range(16)), return_exceptions=True)
    assert gate.window == 8
    for _ in range(10):
        with pytest.raises(RuntimeError):
            await fail()
    assert gate.window == 4


async def test_a_start_that_is_cancelled_says_nothing_of_the_place() -> None:
    gate = StartGate(100)

    async def start() -> None:
        async with gate.turn():
            await asyncio.sleep(10)

    starting = asyncio.create_task(start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert gate.window == 16


async def test_who_gives_up_waiting_takes_no_place() -> None:
    gate = StartGate(1)
    held = asyncio.Event()

    async def hold() -> None:
        async with gate.turn():
            await held.wait()

    first = asyncio.create_task(hold())
    await asyncio.sleep(0)
    second = asyncio.create_task(hold())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    held.set()
    await first
    await asyncio.wait_for(hold(), 1)
