"""What a training run is told: the parts of the configuration that rendering needs, with every 0 and "empty" filled in.

Plain data made once from the configuration and the places of a run. Knows no key of veRL, loads neither torch nor veRL,
reads no file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from openforge.config.models import Config
from openforge.errors import UsageError

MACHINE_GPUS = 8
"""GPUs of one machine where there are several."""


@dataclass(frozen=True)
class TrainSettings:
    """Lengths are tokens."""

    model_dir: Path

    mode: Literal["sync", "separate_async"]
    backend: Literal["fsdp2", "megatron"]
    gpus: int
    seed: int

    steps: int
    groups: int
    group_size: int
    updates: int
    max_staleness: int
    save_every: int

    lr: float
    lr_schedule: Literal["constant", "cosine"]
    optimizer: Literal["adamw", "muon"]
    kl: float
    entropy: float
    clip_low: float
    clip_high: float
    penalize_invalid_calls: bool

    dtype: str
    max_model_len: int
    prompt_length: int
    response_length: int
    temperature: float

    tasks: tuple[str, ...]
    mix: tuple[tuple[str, float], ...]
    """Harness and weight; the weights sum to 1, and those of weight 0 are left out."""
    eval_every: int
    eval_samples: int
    eval_tasks: tuple[str, ...]
    eval_harnesses: tuple[str, ...]

    verl: tuple[tuple[str, Any], ...] = ()
    """veRL's own keys with dots, in the order they stand in; they come last."""

    @classmethod
    def from_config(cls, config: Config, model_dir: Path) -> Self:
        """`model_dir` is absolute. `config` has passed `openforge.config.load`. Raises what `check_trainable` does."""
        check_trainable(config)
        trainer, policy, run = config.trainer, config.policy, config.run
        prompt, response = row_lengths(trainer.prompt_length, trainer.response_length, policy.max_model_len)
        return cls(
            model_dir=model_dir,
            mode=trainer.mode,
            backend=trainer.backend,
            gpus=trainer.gpus,
            seed=run.seed,
            steps=trainer.steps,
            groups=trainer.groups,
            group_size=trainer.group_size,
            updates=trainer.updates,
            max_staleness=trainer.max_staleness,
            save_every=trainer.save_every,
            lr=trainer.lr,
            lr_schedule=trainer.lr_schedule,
            optimizer=trainer.optimizer,
            kl=trainer.kl,
            entropy=trainer.entropy,
            clip_low=trainer.clip_low,
            clip_high=trainer.clip_high,
            penalize_invalid_calls=trainer.penalize_invalid_calls,
            dtype=policy.dtype,
            max_model_len=policy.max_model_len,
            prompt_length=prompt,
            response_length=response,
            temperature=policy.sampling.temperature,
            tasks=run.tasks,
            mix=tuple(shares(run.harnesses, trainer.mix)),
            eval_every=trainer.eval_every,
            eval_samples=trainer.eval_samples,
            eval_tasks=trainer.eval_tasks or run.tasks,
            eval_harnesses=trainer.eval_harnesses or run.harnesses,
            verl=tuple(dotted(trainer.verl)),
        )

    @property
    def rollout_gpus(self) -> int:
        """GPUs that sample: all of them in turns with training, or half of them (or of the machines) meanwhile."""
        if self.mode == "sync":
            return self.gpus
        return self.gpus // 2 if self.gpus <= MACHINE_GPUS else self.gpus // MACHINE_GPUS // 2 * MACHINE_GPUS

    @property
    def train_gpus(self) -> int:
        """GPUs that train; in `separate_async` the larger half."""
        return self.gpus if self.mode == "sync" else self.gpus - self.rollout_gpus

    @property
    def groups_per_update(self) -> int:
        return self.groups // self.updates


def check_trainable(config: Config) -> None:
    """UsageError for sampling whose logprobs are not those that a trainer computes, and for a policy that is served
    elsewhere."""
    sampling, base_url = config.policy.sampling, config.policy.base_url
    if sampling.top_p < 1 or sampling.top_k != -1 or sampling.temperature <= 0:
        raise UsageError(
            "training needs answers from the whole distribution, and policy.sampling has "
            f"temperature = {sampling.temperature:g}, top_p = {sampling.top_p:g}, top_k = {sampling.top_k}",
            hint="temperature above 0, top_p = 1 and top_k = -1 (`openforge config show`)",
        )
    if base_url:
        raise UsageError(
            f"a policy in training is served by its trainer, and policy.base_url is {base_url}",
            hint="leave it out: --set policy.base_url=",
        )


def row_lengths(prompt: int, response: int, limit: int) -> tuple[int, int]:
    """Prompt and response length of a row; 0 takes what the other leaves of `limit`, half of it each if both are 0."""
    prompt = prompt or limit - (response or limit // 2)
    return prompt, response or limit - prompt


def shares(harnesses: tuple[str, ...], mix: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Each harness of a run with its share of the groups; one that `mix` does not name weighs 1."""
    weights = {name: mix.get(name, 1.0) for name in harnesses}
    total = sum(weights.values())
    return ((name, weight / total) for name, weight in weights.items() if weight)


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys; a table with nothing in it is a value."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
