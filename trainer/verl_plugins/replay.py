"""veRL's replay buffers, asked more often: they look for finished groups by polling, every 2 s as they come."""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from openforge.errors import InfraError

_POLL_S = 0.2


class Sync(ReplayBuffer):  # type: ignore[misc]
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=_POLL_S)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        try:
            return super().sample(global_steps, partition_id, batch_size)
        except RuntimeError as error:  # veRL's own advice is about groups that failed; ours finished without a row
            if "no materializable" not in str(error):
                raise
            raise nothing_to_train(global_steps) from error


class Async(ReplayBufferAsync):  # type: ignore[misc]
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=_POLL_S)


def nothing_to_train(step: int) -> InfraError:
    return InfraError(
        f"no rollout of step {step} gave anything to train",
        hint="openforge sql \"SELECT error_class, detail FROM rollouts WHERE state = 'error'\"",
    )
