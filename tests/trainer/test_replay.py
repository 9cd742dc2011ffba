from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the train set is not installed")

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

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
