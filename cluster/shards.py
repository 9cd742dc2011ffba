"""The recorders of a run: one or several, each of them a shard that an attempt sticks to.

Attempts are dealt out in turn. A recorder that dies takes only its own rollouts with it, and its next start serves the
shard's later ones.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from cluster.live_recorder import LiveRecorder
from cluster.recorder import Ready, Recorder
from cluster.runtimes.base import Runtime


class Shards:
    """`new` makes a recorder of a shard; `runtime` is told of every one that has started."""

    def __init__(
        self, count: int, new: Callable[[int], Recorder], runtime: Runtime, say: Callable[[str], None]
    ) -> None:
        async def reach(shard: int, ready: Ready) -> None:
            await runtime.reach(shard, ready.proxy_port, ready.site_port)

        self.live = [LiveRecorder(partial(new, shard), partial(reach, shard), say) for shard in range(count)]
        self._turns = cycle(range(count))

    async def start(self) -> None:
        """All of them. RecorderError."""
        await asyncio.gather(*(live.get() for live in self.live))

    async def next(self) -> tuple[int, Recorder]:
        """The shard of the next attempt and its recorder, started again when it has died. RecorderError."""
        shard = next(self._turns)
        return shard, await self.live[shard].get()

    async def set_policy(self, addresses: Sequence[str], token: str, weight_version: str) -> None:
        """See LiveRecorder; all are told."""
        await asyncio.gather(*(live.set_policy(addresses, token, weight_version) for live in self.live))

    async def forget_policy(self) -> None:
        await asyncio.gather(*(live.forget_policy() for live in self.live))

    async def calls(self) -> list[dict[str, Any]]:
        """The model calls in flight, each with its `shard` and `recorder_id`."""
        told = await asyncio.gather(*(live.calls() for live in self.live))
        return [{**call, "shard": shard} for shard, calls in enumerate(told) for call in calls]

    def states(self) -> list[dict[str, Any]]:
        """How each recorder stands (LiveRecorder.state), with its `shard`."""
        return [{"shard": shard, **live.state()} for shard, live in enumerate(self.live)]

    async def stop(self) -> None:
        await asyncio.gather(*(live.stop() for live in self.live))
