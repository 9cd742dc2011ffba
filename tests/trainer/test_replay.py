from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the train set is not installed")

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from openforge.errors import InfraError
from trainer.trainers import TRAINERS
from trainer.verl_plugins import replay


@pytest.mark.parametrize(
    ("mode", "name", "base"), [("sync", "Sync", ReplayBuffer), ("separate_async", "Async", ReplayBufferAsync)]
)
def test_verl_builds_its_own_buffer_that_looks_more_often(mode: str, name: str, base: type) -> None:
    trainer = TRAINERS[mode].__new__(TRAINERS[mode])
    trainer.trainer_mode = mode
    sampler = {
        "custom_sampler": {"path": str(Path(replay.__file__)), "name": name},
        "max_off_policy_threshold": 2,
        "max_off_policy_strategy": "drop",
        "sampler_kwargs": {},
    }
    trainer.config = OmegaConf.create({"trainer": {"v1": {"sampler": sampler, mode: {}}}})
    built = trainer._build_replay_buffer()
    assert isinstance(built, base)
    assert built.poll_interval < 0.5 < 2.0  # what veRL takes when it is not told
    assert (built.trainer_mode, built.max_off_policy_threshold) == (mode, 2)


def test_s11_a_step_without_a_row_ends_with_our_reason_not_with_verls_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(text: str) -> None:
        def sample(*_: object) -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(ReplayBuffer, "sample", sample)

    buffer = replay.Sync.__new__(replay.Sync)
    raises("Sync replay buffer selected terminal groups with no materializable trajectories.")
    with pytest.raises(InfraError, match="no rollout of step 5 gave anything to train"):
        buffer.sample(5, "train", 2)
    raises("another one")
    with pytest.raises(RuntimeError, match="another one"):
        buffer.sample(5, "train", 2)
