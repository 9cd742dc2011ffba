import subprocess
import sys
from pathlib import Path

import pytest

from openforge.config import Config
from openforge.config.models import Policy, Run, Sampling, Trainer
from openforge.errors import UsageError
from trainer.settings import TrainSettings, dotted, row_lengths, shares

ROOT = Path(__file__).resolve().parent.parent.parent


def settings(**trainer: object) -> TrainSettings:
    config = Config(
        policy=Policy(max_model_len=1000),
        run=Run(tasks=("desk",), harnesses=("react", "pi"), seed=7),
        trainer=Trainer.model_validate(trainer),
    )
    return TrainSettings.from_config(config, Path("/model"))


def test_what_is_empty_is_filled_from_the_run() -> None:
    found = settings()
    assert (found.eval_tasks, found.eval_harnesses) == (("desk",), ("react", "pi"))
    assert found.mix == (("react", 0.5), ("pi", 0.5))
    assert (found.prompt_length, found.response_length, found.max_model_len) == (500, 500, 1000)
    assert found.seed == 7
    own = settings(eval_tasks=["held-out"], eval_harnesses=["codex"])
    assert (own.eval_tasks, own.eval_harnesses) == (("held-out",), ("codex",))


@pytest.mark.parametrize(
    ("prompt", "response", "expected"),
    [(0, 0, (501, 500)), (300, 0, (300, 701)), (0, 300, (701, 300)), (100, 200, (100, 200))],
)
def test_a_length_of_0_takes_what_the_other_leaves(prompt: int, response: int, expected: tuple[int, int]) -> None:
    assert row_lengths(prompt, response, 1001) == expected


def test_harnesses_share_the_groups_by_weight() -> None:
    assert dict(shares(("a", "b", "c"), {"a": 2, "b": 0})) == {"a": 2 / 3, "c": 1 / 3}


def test_own_gpus_for_sampling_only_when_it_goes_on_during_updates() -> None:
    turns, apart = settings(gpus=8), settings(gpus=7, mode="separate_async")
    assert (turns.train_gpus, turns.rollout_gpus) == (8, 8)
    assert (apart.train_gpus, apart.rollout_gpus) == (4, 3)
    machines = settings(gpus=24, mode="separate_async")
    assert (machines.train_gpus, machines.rollout_gpus) == (16, 8)


def test_keys_of_verl_keep_their_order_and_types() -> None:
    table = {"b": {"c": 1, "d": {"e": [1, 2]}}, "a.x": None, "empty": {}}
    assert list(dotted(table)) == [("b.c", 1), ("b.d.e", [1, 2]), ("a.x", None), ("empty", {})]
    assert settings(verl={"trainer": {"nnodes": 2}}).verl == (("trainer.nnodes", 2),)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Policy(sampling=Sampling(top_p=0.9)), "temperature = 1, top_p = 0.9, top_k = -1"),
        (Policy(sampling=Sampling(top_k=20)), "top_k = 20"),
        (Policy(sampling=Sampling(temperature=0.0)), "temperature = 0,"),
        (Policy(base_url="http://127.0.0.1:1"), "served by its trainer, and policy.base_url is http://127.0.0.1:1"),
    ],
)
def test_sampling_that_the_trainer_cannot_compute_is_refused(policy: Policy, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TrainSettings.from_config(Config(policy=policy), Path("/model"))


def test_neither_torch_nor_verl_is_loaded() -> None:
    code = "import sys, trainer.settings; sys.exit(any(name in sys.modules for name in ('torch', 'verl', 'hydra')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
