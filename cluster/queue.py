"""Who is next: one line for each harness, served in turn, so that a slow harness does not hold up the others."""

import asyncio
from collections import deque


class FairQueue[T]:
    """First in, first out within a lane; the lanes take turns. One event loop."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[T]] = {}
        self._turn: deque[str] = deque()
        self._arrived = asyncio.Condition()

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    async def put(self, lane: str, item: T) -> None:
        async with self._arrived:
            if lane not in self._lanes:
                self._lanes[lane] = deque()
                self._turn.append(lane)
            self._lanes[lane].append(item)
            self._arrived.notify()

    async def get(self) -> T:
        """Waits until there is one."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self) > 0)
            while True:
                lane = self._turn[0]
                self._turn.rotate(-1)
                if self._lanes[lane]:
                    return self._lanes[lane].popleft()
