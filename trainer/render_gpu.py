"""veRL's keys that a machine with GPUs needs: FSDP2 or Megatron, vLLM on the same GPUs or on others. Pure.

Only what follows from the configuration; how a model is cut over GPUs stands in its recipe under [trainer.verl].
Checked against veRL's own schema (check_config.py); not every combination was run.
"""

from typing import Any

from trainer.settings import MACHINE_GPUS, TrainSettings

_SEQUENCES = 256  # that one vLLM replica runs at once
_CALLS_A_SEQUENCE = 8  # calls the live policy takes in for each of them

_MODEL, _ACTOR, _REF = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"


def gpu(settings: TrainSettings) -> dict[str, Any]:
    """Keys and values; None is null."""
    machines, gpus = layout(settings.train_gpus)
    apart = settings.mode == "separate_async"
    return {
        **(_megatron(settings) if settings.backend == "megatron" else _fsdp(settings)),
        **(_apart(settings) if apart else {}),
        "trainer.nnodes": machines,
        "trainer.n_gpus_per_node": gpus,
        # names, not cores: veRL's actors each take one; several machines are a Ray cluster, which knows its own
        "ray_kwargs.ray_init.num_cpus": 32 + 8 * settings.gpus if settings.gpus <= MACHINE_GPUS else None,
        f"{_MODEL}.enable_gradient_checkpointing": True,
        # with use_dynamic_bsz, where rows are packed by tokens: the longest one fits
        f"{_ACTOR}.ppo_max_token_len_per_gpu": settings.prompt_length + settings.response_length,
        f"{_ROLLOUT}.tensor_model_parallel_size": 1,
        f"{_ROLLOUT}.max_num_seqs": _SEQUENCES,
        f"{_ROLLOUT}.gpu_memory_utilization": 0.85 if apart else 0.5,  # the other half is the trainer's
        "+openforge.max_calls": _SEQUENCES * _CALLS_A_SEQUENCE,
    }


def layout(gpus: int) -> tuple[int, int]:
    """Machines, and GPUs of each: one machine up to 8, then whole machines of 8."""
    return (1, gpus) if gpus <= MACHINE_GPUS else (gpus // MACHINE_GPUS, MACHINE_GPUS)


def _fsdp(settings: TrainSettings) -> dict[str, Any]:
    muon = settings.optimizer == "muon"
    half = _half(settings)
    return {
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.fsdp_config.model_dtype": "fp32",  # of the weights that the optimizer holds
        f"{_ACTOR}.fsdp_config.dtype": half,
        f"+{_ACTOR}.fsdp_config.mixed_precision": {"param_dtype": half, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        f"{_ACTOR}.optim.optimizer_impl": "trainer.verl_plugins.muon" if muon else "torch.optim",
        f"{_ACTOR}.optim.optimizer": "MuonAdamW" if muon else "AdamW",
        f"{_ACTOR}.optim.lr_scheduler_type": settings.lr_schedule,
        f"{_ACTOR}.optim.min_lr_ratio": 0.1,
        f"{_REF}.fsdp_config.dtype": half,
        f"{_REF}.fsdp_config.param_offload": True,  # it is asked once a step
        # Works with requirements/train-gpu.txt alone. One row at a time, since shorter ones beside it would be padded
        # to its length; with flash-attn a recipe may ask for it, for use_remove_padding and use_dynamic_bsz.
        f"+{_MODEL}.override_config.attn_implementation": "sdpa",
        f"{_MODEL}.use_remove_padding": False,
        f"{_ACTOR}.use_dynamic_bsz": False,
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 1,
        f"{_REF}.log_prob_micro_batch_size_per_gpu": 1,
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": 1,
    }


def _megatron(settings: TrainSettings) -> dict[str, Any]:
    half = _half(settings)
    return {
        "model_engine": "megatron",
        f"{_ACTOR}.optim.lr_decay_style": settings.lr_schedule,
        f"{_ACTOR}.optim.min_lr": 0.1 * settings.lr if settings.lr_schedule == "cosine" else 0.0,
        f"{_ACTOR}.megatron.dtype": half,
        f"{_REF}.megatron.dtype": half,
        f"{_MODEL}.use_remove_padding": True,
        f"{_ACTOR}.use_dynamic_bsz": True,
    }


def _apart(settings: TrainSettings) -> dict[str, Any]:
    machines, gpus = layout(settings.rollout_gpus)
    return {
        f"{_ROLLOUT}.nnodes": machines,
        f"{_ROLLOUT}.n_gpus_per_node": gpus,
        f"{_ROLLOUT}.checkpoint_engine.backend": "nccl",  # needs the package cupy-cuda13x
    }


def _half(settings: TrainSettings) -> str:
    """The type that training computes in: the one that sampling uses, or their logprobs differ."""
    return "bfloat16" if settings.dtype == "auto" else settings.dtype
