"""Who is next: one line for each harness, served in turn, so that a slow harness does not hold up the others."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping


class FairQueue[T]:
    """First in, first out within a lane; the lanes take turns. `caps`: how many of a lane may be out at once.

    What `get` hands out is out until `done` is called for its lane. One event loop.
    """

    def __init__(self, caps: Mapping[str, int] | None = None) -> None:
        self._lanes: dict[str, deque[T]] = {}
        self._turn: deque[str] = deque()
        self._caps, self._out = dict(caps or {}), Counter[str]()
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    async def put(self, lane: str, item: T) -> None:
        async with self._changed:
            if lane not in self._lanes:
                self._lanes[lane] = deque()
                self._turn.append(lane)
            self._lanes[lane].append(item)
            self._changed.notify()

    async def get(self) -> T:
        """Waits until there is one whose lane has not reached its cap."""
        async with self._changed:
            while True:
                for _ in range(len(self._turn)):
                    lane = self._turn[0]
                    self._turn.rotate(-1)
                    if self._lanes[lane] and self._out[lane] < self._caps.get(lane, self._out[lane] + 1):
                        self._out[lane] += 1
                        return self._lanes[lane].popleft()
                await self._changed.wait()

    async def done(self, lane: str) -> None:
        """One of the lane is over."""
        async with self._changed:
            self._out[lane] -= 1
            self._changed.notify()
