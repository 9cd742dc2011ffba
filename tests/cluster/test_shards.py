"""What the recorders of a run say together; their processes are replaced, the rest is real."""

import asyncio
from pathlib import Path
from typing import Any, cast

from cluster.recorder import Ready, Recorder, RecorderError
from cluster.runtimes.base import Runtime
from cluster.shards import Shards


class Answering:
    """A recorder that has started and has one call in flight."""

    def __init__(self, shard: int, *, dead: bool = False) -> None:
        self._shard, self._dead = shard, dead
        self.died = asyncio.Event()

    async def start(self) -> Ready:
        return Ready(f"recorder-{self._shard}", 1, 1, 1, Path("/"), 1)

    async def status(self) -> dict[str, Any]:
        if self._dead:
            raise RecorderError("it is gone")
        return {"recorder_id": f"recorder-{self._shard}", "calls": [{"call_id": f"c{self._shard}"}]}


class Nowhere:
    async def reach(self, shard: int, proxy_port: int, site_port: int) -> None: ...


def shards(count: int, dead: int | None = None) -> Shards:
    def new(shard: int) -> Recorder:
        return cast(Recorder, Answering(shard, dead=shard == dead))

    return Shards(count, new, cast(Runtime, Nowhere()), lambda text: None)


async def test_each_call_in_flight_says_which_shard_answers_it() -> None:
    made = shards(2)
    assert await made.calls() == []
    await made.start()
    assert await made.calls() == [
        {"call_id": "c0", "recorder_id": "recorder-0", "shard": 0},
        {"call_id": "c1", "recorder_id": "recorder-1", "shard": 1},
    ]


async def test_each_recorder_says_since_when_it_is_up_and_how_often_it_was_started() -> None:
    made = shards(2)
    assert [one["state"] for one in made.states()] == ["down", "down"]
    await made.start()
    made.live[1].recorder.died.set()
    up, down = made.states()
    assert (up["shard"], up["state"], up["starts"]) == (0, "up", 1)
    assert 0 <= up["up_s"] < 60
    assert down == {"shard": 1, "state": "down", "up_s": None, "starts": 1}


async def test_a_shard_between_two_recorders_has_no_calls() -> None:
    made = shards(3, dead=1)
    await made.start()
    assert [call["shard"] for call in await made.calls()] == [0, 2]
