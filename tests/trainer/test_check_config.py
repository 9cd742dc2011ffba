"""What is rendered is given to the installed veRL: its composition, its checks, its classes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from openforge.config import load
from openforge.errors import ConfigError
from trainer.check_config import check, check_keys
from trainer.render import Place, overrides
from trainer.settings import TrainSettings

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL_TYPES = {"qwen3-30b-a3b-claw": "qwen3_moe", "qwen3-vl-8b-browser": "qwen3_vl", "smollm2-cpu": "llama"}


@pytest.fixture
def render(tmp_path: Path):
    def rendered(recipe: str, **typed: Any) -> list[str]:
        model = {"model_type": MODEL_TYPES.get(recipe, "qwen3"), "architectures": ["M"], "num_hidden_layers": 2}
        (tmp_path / "config.json").write_text(json.dumps(model))
        flags = {"trainer.recipe": recipe, **{key.replace("__", "."): value for key, value in typed.items()}}
        config = load(tmp_path, overrides=flags, env={}).config
        settings = TrainSettings.from_config(config, tmp_path)
        return overrides(settings, Place(tmp_path / "plan", tmp_path / "eval", tmp_path / "trainer", tmp_path / "tb"))

    return rendered


@pytest.fixture
def refusal(render):
    def refuse(key: str, value: Any, recipe: str = "tiny-cpu") -> str:
        with pytest.raises(ConfigError) as caught:
            check(render(recipe, **{f"trainer.verl.{key}": value}))
        return caught.value.summary

    return refuse


def actor(config: DictConfig) -> DictConfig:
    return config.actor_rollout_ref.actor


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
@pytest.mark.parametrize("recipe", ["tiny-cpu", "smollm2-cpu", "qwen3-30b-a3b-claw", "qwen3-vl-8b-browser"])
def test_verl_takes_every_recipe_in_both_modes(render, recipe: str, mode: str, capfd) -> None:
    config = check(render(recipe, trainer__mode=mode))
    assert config.trainer.v1.trainer_mode == mode
    assert config.data.train_batch_size % config.openforge.updates == 0
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
@pytest.mark.parametrize("typed", [{"updates": 2}, {"kl": 0.1}, {"optimizer": "muon"}, {"gpus": 2}])
def test_verl_takes_what_a_recipe_leaves_open(render, typed: dict[str, Any], mode: str) -> None:
    check(render("tiny-cpu", trainer__mode=mode, **{f"trainer__{key}": value for key, value in typed.items()}))


def test_the_backend_of_a_recipe_can_be_changed(render) -> None:
    assert actor(check(render("qwen3-30b-a3b-claw"))).megatron.expert_model_parallel_size == 4
    fsdp = actor(check(render("qwen3-30b-a3b-claw", trainer__backend="fsdp2")))
    assert (fsdp.strategy, fsdp.fsdp_config.param_offload) == ("fsdp2", True)


def test_own_keys_of_verl_reach_it(render) -> None:
    own = {"trainer.verl.actor_rollout_ref.actor.clip_ratio_c": 5, "trainer.verl.trainer.esi_redundant_time": 3}
    config = check(render("tiny-cpu", **own))
    assert (actor(config).clip_ratio_c, config.trainer.esi_redundant_time) == (5, 3)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("actor_rollout_ref.actor.optim.lrr", "actor_rollout_ref.actor.optim.lr"),
        ("actor_rollout_ref.actr.ppo_epochs", "actor_rollout_ref.actor.ppo_epochs"),
        ("trainer.save_frq", "trainer.save_freq"),
        ("clip_ratio_c", "actor_rollout_ref.actor.clip_ratio_c"),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest(refusal, key: str, nearest: str) -> None:
    assert refusal(key, 1) == f"trainer.verl.{key} is not a key of veRL; did you mean trainer.verl.{nearest}?"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.seed", 3),  # an empty table takes any key
        ("actor_rollout_ref.rollout.enable_sleep_mode", False),  # in veRL's class, not in its files
        ("actor_rollout_ref.model.override_config.rope_theta", 1e6),
    ],
)
def test_keys_that_verl_takes_without_listing_them_are_no_mistake(render, key: str, value: Any) -> None:
    check_keys(render("tiny-cpu", **{f"trainer.verl.{key}": value}))


def test_a_table_that_verl_hands_on_takes_any_key(render) -> None:
    key = "actor_rollout_ref.actor.megatron.override_transformer_config.moe_router_dtype"
    check_keys(render("qwen3-30b-a3b-claw", **{f"trainer.verl.{key}": "fp32"}))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("actor_rollout_ref.actor.optim.lr", "fast", "should be a valid number, but it is 'fast'"),
        ("actor_rollout_ref.rollout.n", 1.5, "should be a valid integer"),
        ("actor_rollout_ref.rollout.free_cache_engine", "yes", "should be a valid boolean"),
        ("trainer.save_freq", "often", "should be a valid number"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(refusal, key: str, value: Any, told: str) -> None:
    assert refusal(key, value).startswith(f"trainer.verl.{key} {told}")


def test_what_verl_itself_refuses_is_told_in_its_words(refusal) -> None:
    told = refusal("actor_rollout_ref.actor.loss_agg_mode", "seq-mean")
    assert told == "veRL refuses the configuration: Invalid loss_agg_mode: seq-mean"


def test_what_the_trainer_refuses_is_told_as_well(render) -> None:
    own = {"trainer.verl.trainer.v1.separate_async.parameter_sync_step": 5}
    with pytest.raises(ConfigError, match=r"veRL refuses trainer\.v1: train_batch_size must equal"):
        check(render("tiny-cpu", trainer__mode="separate_async", **own))


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("tiny-cpu", "actor_rollout_ref.rollout.tensor_model_parallel_size"),
        ("qwen3-vl-8b-browser", "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"),
        ("qwen3-30b-a3b-claw", "actor_rollout_ref.actor.megatron.expert_model_parallel_size"),
        ("qwen3-30b-a3b-claw", "actor_rollout_ref.actor.megatron.context_parallel_size"),
    ],
)
def test_parallel_sizes_that_do_not_fit_the_machine_are_refused(refusal, recipe: str, key: str) -> None:
    assert "does not divide" in refusal(key, 3, recipe)


def test_the_command_prints_the_configuration_or_what_is_wrong_with_it(render) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "trainer.check_config", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=ROOT)

    good, wrong = run(*render("tiny-cpu")), run(*render("tiny-cpu"), "++trainer.save_frq=1")
    assert (good.returncode, good.stdout[:13]) == (0, "model_engine:")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean trainer.verl.trainer.save_freq?" in wrong.stderr
