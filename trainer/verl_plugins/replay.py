"""veRL's replay buffers, asked more often: they look for finished groups by polling, every 2 s as they come."""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

_POLL_S = 0.2


class Sync(ReplayBuffer):  # type: ignore[misc]
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=_POLL_S)


class Async(ReplayBufferAsync):  # type: ignore[misc]
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=_POLL_S)
