"""From the configuration of a training run to veRL's own keys. Pure: loads neither torch nor veRL.

Here is what holds everywhere and what a CPU needs; GPUs are in render_gpu.py. `[trainer.verl]` comes last and is passed
through untouched; of the tables `megatron` and `fsdp_config` only that of the chosen backend.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.render_gpu import gpu
from trainer.rows import attention_reach
from trainer.settings import TrainSettings

ROOT = Path(__file__).resolve().parent.parent
_PLUGINS = ROOT / "trainer" / "verl_plugins"
_PLAIN = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_WORDS = ("true", "false", "null", "nan", "inf")
_MICRO_TOKENS = 4096
_FLOOR = 0.1  # of the learning rate, where a cosine ends
_CALLS_A_SEQUENCE = 8  # calls the live policy takes in for each that vLLM runs at once


@dataclass(frozen=True)
class Place:
    """Where a training run finds and leaves things. `resume`: the checkpoint folder to go on from."""

    plan: Path
    eval_plan: Path
    checkpoints: Path
    tensorboard: Path
    resume: Path | None = None


def overrides(settings: TrainSettings, place: Place) -> list[str]:
    """Arguments of `python -m trainer.main`."""
    model = json.loads((settings.model_dir / "config.json").read_bytes())
    machine = gpu(settings) if settings.gpus else _cpu(settings, model)
    other = "fsdp_config" if settings.backend == "megatron" else "megatron"
    values = {**_common(settings, place, model), **_mode(settings), **machine}
    rendered = [f"{key}={hydra_value(value)}" for key, value in values.items()]
    own = {key: value for key, value in settings.verl if other not in key.split(".")}
    return rendered + [f"{_own_key(key)}={hydra_value(value)}" for key, value in own.items()]


def _common(settings: TrainSettings, place: Place, model: Mapping[str, Any]) -> dict[str, Any]:
    evaluates = settings.eval_every >= 0
    seed = settings.seed % (1 << 31)  # what seeds numpy may not be negative
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "algorithm.rollout_correction.bypass_mode": True,  # the logprobs that were recorded, not new ones
        "data.train_files": place.plan,
        "data.val_files": place.eval_plan,
        "data.custom_cls.path": _PLUGINS / "plan_dataset.py",
        "data.custom_cls.name": "PlanDataset",
        "data.train_batch_size": settings.groups,
        "data.max_prompt_length": settings.prompt_length,
        "data.max_response_length": settings.response_length,
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": settings.model_dir,
        f"{actor}.ppo_mini_batch_size": settings.groups_per_update,
        f"{actor}.clip_ratio_low": settings.clip_low,
        f"{actor}.clip_ratio_high": settings.clip_high,
        f"{actor}.loss_agg_mode": "token-mean",  # with row_weights: the mean over rollouts of each one's mean
        f"{actor}.use_kl_loss": settings.kl > 0,
        f"{actor}.kl_loss_coef": settings.kl,
        f"{actor}.entropy_coeff": settings.entropy,
        f"{actor}.calculate_entropy": True,
        f"{actor}.optim.lr": settings.lr,
        f"{actor}.optim.weight_decay": 0.0,
        f"{actor}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{actor}.shuffle": settings.updates > 1,
        f"{actor}.data_loader_seed": seed,
        f"{rollout}.name": "vllm",
        f"{rollout}.seed": seed,
        f"{rollout}.n": settings.group_size,
        f"{rollout}.temperature": settings.temperature,
        f"{rollout}.top_p": 1.0,
        f"{rollout}.top_k": -1,
        f"{rollout}.val_kwargs.n": 1,
        f"{rollout}.max_model_len": settings.max_model_len,
        f"{rollout}.dtype": settings.dtype,
        f"{rollout}.load_format": "auto",
        f"{rollout}.agent.num_workers": 1,  # one event loop holds all rollouts; they run elsewhere
        f"{rollout}.agent.agent_loop_config_path": ROOT / "trainer" / "loops.yaml",
        f"{rollout}.agent.default_agent_loop": "openforge",
        "reward.num_workers": 1,
        "trainer.v1.trainer_mode": settings.mode,
        "trainer.v1.sampler.custom_sampler.path": _PLUGINS / "replay.py",
        "trainer.v1.sampler.custom_sampler.name": "Sync" if settings.mode == "sync" else "Async",
        "trainer.total_training_steps": settings.steps,
        "trainer.total_epochs": settings.steps,
        "trainer.save_freq": settings.save_every,
        "trainer.val_before_train": evaluates and place.resume is None,
        "trainer.test_freq": (settings.eval_every or settings.steps) if evaluates else -1,
        "trainer.logger": ["tensorboard"],
        "trainer.project_name": "openforge",
        "trainer.experiment_name": place.checkpoints.parent.name,
        "trainer.default_local_dir": place.checkpoints,
        "trainer.resume_mode": "disable" if place.resume is None else "resume_path",
        "trainer.resume_from_path": place.resume,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+openforge.updates": settings.updates,
        "+openforge.reach": attention_reach(model),
        "+openforge.penalize_invalid_calls": settings.penalize_invalid_calls,
    }


def _cpu(settings: TrainSettings, model: Mapping[str, Any]) -> dict[str, Any]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    muon = settings.optimizer == "muon"
    optimizer = {
        f"{actor}.optim.optimizer_impl": "trainer.verl_plugins.muon" if muon else "torch.optim",
        f"{actor}.optim.optimizer": "MuonAdamW" if muon else "AdamW",
        f"{actor}.optim.betas": [0.9, 0.95],
        f"{actor}.optim.lr_scheduler_type": settings.lr_schedule,
        f"{actor}.optim.min_lr_ratio": _FLOOR,
    }
    return {
        **optimizer,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "ray_kwargs.ray_init.num_cpus": 32,  # names, not cores: veRL's actors each take one
        "+ray_kwargs.ray_init.num_gpus": 1 if settings.mode == "sync" else 2,
        "+ray_kwargs.ray_init.object_store_memory": 400_000_000,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        f"{actor}.strategy": "fsdp2",
        **_cpu_engine(actor),
        **_cpu_engine("actor_rollout_ref.ref"),
        f"{actor}.use_torch_compile": False,
        f"{actor}.use_dynamic_bsz": True,  # micro-batches by tokens: rows need not come in any number
        f"{actor}.ppo_max_token_len_per_gpu": max(_MICRO_TOKENS, settings.prompt_length + settings.response_length),
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.max_num_seqs": 32,
        f"{rollout}.enforce_eager": True,
        f"{rollout}.free_cache_engine": False,
        f"+{rollout}.enable_sleep_mode": False,
        f"+{rollout}.engine_kwargs.vllm.compilation_config": {"cudagraph_mode": "NONE"},
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": _bucket_mb(settings.model_dir, model),
        "+openforge.max_calls": 16 * _CALLS_A_SEQUENCE,
        **(_cpu_apart() if settings.mode == "separate_async" else {}),
    }


def _bucket_mb(model_dir: Path, model: Mapping[str, Any]) -> int:
    """Weights go to vLLM through shared memory of this size. All of them at once, in float32 and a tied output layer
    twice: vLLM refuses such a layer when its embedding comes in another piece."""
    saved = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    embedding = int(model.get("vocab_size", 0)) * int(model.get("hidden_size", 0)) * 4
    return max(64, 1 + (2 * saved + embedding >> 20))


def _cpu_engine(table: str) -> dict[str, Any]:
    return {
        f"{table}.fsdp_config.model_dtype": "fp32",
        f"+{table}.fsdp_config.mixed_precision": {
            "param_dtype": "fp32",
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        },
        f"{table}.fsdp_config.use_torch_compile": False,
    }


def _cpu_apart() -> dict[str, Any]:
    rollout = "actor_rollout_ref.rollout"
    return {
        f"{rollout}.nnodes": 1,
        f"{rollout}.n_gpus_per_node": 1,
        f"{rollout}.checkpoint_engine.backend": "openforge_file",
        f"{rollout}.checkpoint_engine.custom_backend_module": "trainer.verl_plugins.file_checkpoint",
    }


def _mode(settings: TrainSettings) -> dict[str, Any]:
    if settings.mode == "sync":
        return {}
    return {
        "actor_rollout_ref.hybrid_engine": False,
        "actor_rollout_ref.actor.ppo_mini_batch_size": settings.groups,  # veRL's rule; trainers.py splits it
        "trainer.v1.separate_async.parameter_sync_step": 1,
        "trainer.v1.separate_async.num_warmup_batches": min(1, settings.max_staleness),
        # veRL counts versions, the newest too
        "trainer.v1.sampler.max_off_policy_threshold": settings.max_staleness + 1,
        "trainer.v1.sampler.max_off_policy_strategy": "drop",
    }


def _own_key(key: str) -> str:
    """`++` sets a key whether veRL's files have it or not; one that already says how stays as it is."""
    return key if key.startswith(("+", "~")) else f"++{key}"


def hydra_value(value: Any) -> str:
    """A value in the grammar of Hydra's command line; text that it would read as something else is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(inside)}" for key, inside in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # a backslash counts as one only before a quote, where each is doubled
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), str(value))
    return f"'{escaped}'"
