"""The recorder that a run has now: started when it is needed, started again when it has died, told where the policy is.

After too many deaths in a short time there is none any more; a training that lasts for days may lose one now and then.
What the orchestrator does about a death is the orchestrator's business.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.recorder_process import Ready, RecorderError, RecorderProcess

_STARTS, _WITHIN_S = 4, 600.0
_DEATH_S = 2.0  # between a connection that breaks and the end of the process that is noticed


class LiveRecorder:
    """`settings` is what a recorder is told but for its secret; `on_ready` is told of every one that has started."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        log: Path,
        on_ready: Callable[[Ready], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self.process: RecorderProcess | None = None
        self.starts = 0
        self._recent: deque[float] = deque(maxlen=_STARTS)
        self._settings, self._log = settings, log
        self._on_ready, self._say = on_ready, say
        self._policy: tuple[tuple[str, ...], str, str] | None = None  # addresses, token, weight version
        self._told = False  # the recorder of now knows it
        self._lock = asyncio.Lock()

    async def get(self) -> RecorderProcess:
        """The recorder, started again when it has died. RecorderError after too many deaths in a short time."""
        async with self._lock:
            if self.process is None or self.process.died.is_set():
                await self._start()
            assert self.process is not None
            await self._tell_policy(self.process)
            return self.process

    async def _start(self) -> None:
        now_s = time.monotonic()
        if len(self._recent) == _STARTS and now_s - self._recent[0] < _WITHIN_S:
            told = f"the recorder died {_STARTS} times within {now_s - self._recent[0]:.0f} s"
            raise RecorderError(told, hint="openforge logs --recorder")
        if self.process is not None:
            self._say("the recorder died; starting it again")
            await self.process.stop()
        self.starts += 1
        self._recent.append(now_s)
        process = RecorderProcess(self._settings, self._log)
        await self._on_ready(await process.start())
        self.process, self._told = process, False  # one that did not start is none

    async def set_policy(self, addresses: Sequence[str], token: str, weight_version: str) -> None:
        """Where the policy answers from now on: the recorder is told, and every one that follows it. RecorderError when
        it refuses; one that is dead is told once it is started again."""
        async with self._lock:
            self._policy, self._told = (tuple(addresses), token, weight_version), False
            process = self.process
            if process is None or process.died.is_set():
                return
            try:
                await self._tell_policy(process)
            except RecorderError:
                if not await _dies(process):
                    raise

    async def forget_policy(self) -> None:
        """The policy is away: calls wait until it is told where it is again. Nothing when it was never told."""
        if self._policy is not None:
            await self.set_policy((), "", self._policy[2])

    async def _tell_policy(self, recorder: RecorderProcess) -> None:
        if self._policy is not None and not self._told:
            addresses, token, weight_version = self._policy
            await recorder.set_policy(addresses, token, weight_version)
            self._told = True

    async def calls(self) -> list[dict[str, Any]]:
        """The model calls in flight."""
        if self.process is not None:
            with suppress(RecorderError):  # between two recorders there are no calls
                return list((await self.process.status()).get("calls", []))
        return []

    async def stop(self) -> None:
        if self.process is not None:
            await self.process.stop()


async def _dies(process: RecorderProcess) -> bool:
    """Whether it is dead, or about to be."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.died.wait(), _DEATH_S)
    return process.died.is_set()
