"""How many sandboxes start at once: as many as the place takes without each of them becoming slow.

A cluster that is asked for a thousand pods starts none of them sooner for that: they wait in it instead of here, where
they could still be cancelled, and the first is as late as the last. The window grows while starts are about as quick
as the quickest one was, and shrinks when they take several times as long or fail (additive up, multiplicative down).
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_FIRST, _LEAST, _SLOW, _DOWN, _FAILED = 16.0, 4.0, 5.0, 0.8, 0.5
_GRAIN_S = 0.05  # a difference below this one is no slowness


class StartGate:
    """Whoever starts a sandbox does so inside `turn`. One event loop."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self.window = min(_FIRST, self._most)
        self._starting, self._quickest_s, self._shrank_s = 0, float("inf"), 0.0
        self._steady = False  # before the first sign of slowness it doubles with each round
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._enter()
        began_s = time.monotonic()
        try:
            yield
            self._learn(began_s, time.monotonic(), good=True)
        except Exception:  # not when it is cancelled, which says nothing of the place
            self._learn(began_s, time.monotonic(), good=False)
            raise
        finally:
            self._starting -= 1
            self._admit()

    async def _enter(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._admit()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # admitted at the same moment
                self._starting -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self._starting < int(self.window):
            first = self._waiting.popleft()
            if not first.cancelled():
                self._starting += 1
                first.set_result(None)

    def _learn(self, began_s: float, now_s: float, *, good: bool) -> None:
        took_s = now_s - began_s
        if good:
            self._quickest_s = min(self._quickest_s, took_s)
        if good and took_s <= _SLOW * self._quickest_s + _GRAIN_S:
            if self._starting >= int(self.window):  # else nobody waited, and nothing is known of a wider one
                self.window = min(self._most, self.window + (1 / self.window if self._steady else 1.0))
        elif began_s > self._shrank_s:  # once for all that began under the same window
            self.window = min(self._most, max(_LEAST, self.window * (_DOWN if good else _FAILED)))
            self._shrank_s, self._steady = now_s, True
