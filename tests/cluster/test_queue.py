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


async def test_a_lane_at_its_cap_lets_the_others_pass_and_goes_on_when_one_of_it_is_over() -> None:
    queue: FairQueue[str] = FairQueue({"a": 1})
    for item in ("a1", "a2", "b1", "b2"):
        await queue.put(item[0], item)
    assert [await queue.get() for _ in range(3)] == ["a1", "b1", "b2"]
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    await queue.done("b")
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await queue.done("a")
    assert await asyncio.wait_for(waiting, 1) == "a2"
