"""Whose turn it is."""

import asyncio

from cluster.queue import FairQueue


async def test_lanes_take_turns_and_each_lane_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1"):
        await queue.put(item[0], item)
    got = [await queue.get() for _ in range(5)]
    assert sorted(got[:3]) == ["a1", "b1", "c1"]
    assert got[3:] == ["a2", "a3"]


async def test_get_waits_for_what_is_not_there_yet_and_can_be_cancelled() -> None:
    queue: FairQueue[int] = FairQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await queue.put("lane", 1)
    assert await asyncio.wait_for(second, 1) == 1
