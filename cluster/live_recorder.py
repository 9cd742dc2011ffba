"""The recorder that a run has now: started when it is needed, started again when it has died, told where the policy is.

After too many deaths in a short time there is none any more; a training that lasts for days may lose one now and then.
What the orchestrator does about a death is the orchestrator's business.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from cluster.recorder import Ready, Recorder, RecorderError

_STARTS, _WITHIN_S = 4, 600.0
_DEATH_S = 2.0  # between a connection that breaks and the end of the process that is noticed


class LiveRecorder:
    """`new` makes one; `on_ready` is told of every one that has started."""

    def __init__(
        self,
        new: Callable[[], Recorder],
        on_ready: Callable[[Ready], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self.recorder: Recorder | None = None
        self.starts = 0
        self._up_since_s = 0.0
        self._new = new
        self._recent: deque[float] = deque(maxlen=_STARTS)
        self._on_ready, self._say = on_ready, say
        self._policy: tuple[tuple[str, ...], str, str] | None = None  # addresses, token, weight version
        self._told = False  # the recorder of now knows it
        self._lock = asyncio.Lock()

    async def get(self) -> Recorder:
        """The recorder, started again when it has died. RecorderError after too many deaths in a short time."""
        async with self._lock:
            if self.recorder is None or self.recorder.died.is_set():
                await self._start()
            assert self.recorder is not None
            await self._tell_policy(self.recorder)
            return self.recorder

    async def _start(self) -> None:
        now_s = time.monotonic()
        if len(self._recent) == _STARTS and now_s - self._recent[0] < _WITHIN_S:
            told = f"the recorder died {_STARTS} times within {now_s - self._recent[0]:.0f} s"
            raise RecorderError(told, hint="openforge logs --recorder")
        if self.recorder is not None:
            self._say("the recorder died; starting it again")
            await self.recorder.stop()
        self.starts += 1
        self._recent.append(now_s)
        recorder = self._new()
        await self._on_ready(await recorder.start())
        self.recorder, self._told = recorder, False  # one that did not start is none
        self._up_since_s = time.monotonic()

    async def set_policy(self, addresses: Sequence[str], token: str, weight_version: str) -> None:
        """Where the policy answers from now on: the recorder is told, and every one that follows it. RecorderError when
        it refuses; one that is dead is told once it is started again."""
        async with self._lock:
            self._policy, self._told = (tuple(addresses), token, weight_version), False
            recorder = self.recorder
            if recorder is None or recorder.died.is_set():
                return
            try:
                await self._tell_policy(recorder)
            except RecorderError:
                if not await _dies(recorder):
                    raise

    async def forget_policy(self) -> None:
        """The policy is away: calls wait until it is told where it is again. Nothing when it was never told."""
        if self._policy is not None:
            await self.set_policy((), "", self._policy[2])

    async def _tell_policy(self, recorder: Recorder) -> None:
        if self._policy is not None and not self._told:
            addresses, token, weight_version = self._policy
            await recorder.set_policy(addresses, token, weight_version)
            self._told = True

    async def calls(self) -> list[dict[str, Any]]:
        """The model calls in flight, each with the `recorder_id` that answers it."""
        if self.recorder is not None:
            with suppress(RecorderError):  # between two recorders there are no calls
                told = await self.recorder.status()
                return [{**call, "recorder_id": told.get("recorder_id")} for call in told.get("calls", [])]
        return []

    def state(self) -> dict[str, Any]:
        """Whether it is up, and for how many seconds; how often it was started."""
        up = self.recorder is not None and not self.recorder.died.is_set()
        state = "up" if up else "starting" if self._lock.locked() else "down"
        return {"state": state, "up_s": time.monotonic() - self._up_since_s if up else None, "starts": self.starts}

    async def stop(self) -> None:
        if self.recorder is not None:
            await self.recorder.stop()


async def _dies(recorder: Recorder) -> bool:
    """Whether it is dead, or about to be."""
    with suppress(TimeoutError):
        await asyncio.wait_for(recorder.died.wait(), _DEATH_S)
    return recorder.died.is_set()
