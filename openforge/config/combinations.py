"""Rules of the configuration that need more than one key. Each refusal says where, what and what to change."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from openforge.config.models import Config, size_bytes
from openforge.errors import ConfigError


class Clash(NamedTuple):
    """`key` is the one to blame: its place is told."""

    key: str
    what: str
    hint: str


def check_together(config: Config, where: Mapping[tuple[str, ...], str]) -> None:
    """Raises ConfigError with every clash of `config`; `where` says where a key stands."""
    clashes = [
        *_policy(config),
        *_harnesses(config),
        *_sandbox(config),
        *_batch(config),
        *_machine(config),
        *_lengths(config),
    ]
    if not clashes:
        return
    lines = [f"{where.get(tuple(clash.key.split('.')), 'default')}: {clash.what}" for clash in clashes]
    raise ConfigError("\n".join(lines), hint=clashes[0].hint)


def _policy(config: Config) -> Iterator[Clash]:
    if config.policy.engine != "openai":
        return
    if not config.policy.base_url and config.target.kind != "sim":
        yield Clash(
            "policy.engine",
            'policy.engine = "openai" needs policy.base_url',
            "set policy.base_url to the provider's address",
        )
    elif config.run.mode == "train":
        yield Clash(
            "policy.engine",
            'policy.engine = "openai" answers with text, and run.mode = "train" needs tokens',
            'set run.mode = "record", or use policy.engine = "vllm"',
        )


def _harnesses(config: Config) -> Iterator[Clash]:
    known = {Path(harness).name for harness in config.run.harnesses}
    for name in sorted(config.run.harness_concurrency.keys() - known):
        yield Clash(
            f"run.harness_concurrency.{name}",
            f"run.harness_concurrency names {name!r}, which is not in run.harnesses ({', '.join(sorted(known))})",
            f"add {name!r} to run.harnesses, or take it out of run.harness_concurrency",
        )


def _sandbox(config: Config) -> Iterator[Clash]:
    sandbox = config.sandbox
    if sandbox.request_cpu > sandbox.cpu:
        yield Clash(
            "sandbox.request_cpu",
            f"sandbox.request_cpu = {sandbox.request_cpu:g} is more than sandbox.cpu = {sandbox.cpu:g}",
            "a pod claims at most what it may take",
        )
    if size_bytes(sandbox.request_memory) > size_bytes(sandbox.memory):
        yield Clash(
            "sandbox.request_memory",
            f'sandbox.request_memory = "{sandbox.request_memory}" is more than sandbox.memory = "{sandbox.memory}"',
            "a pod claims at most what it may take",
        )


def _batch(config: Config) -> Iterator[Clash]:
    trainer = config.trainer
    if trainer.groups % trainer.updates:
        fitting = [n for n in range(1, trainer.groups + 1) if trainer.groups % n == 0]
        yield Clash(
            "trainer.updates",
            f"trainer.updates = {trainer.updates} does not divide trainer.groups = {trainer.groups}",
            f"an update takes an equal part of the groups: {', '.join(map(str, fitting))} would do",
        )
    for name in sorted(trainer.mix.keys() - set(config.run.harnesses)):
        yield Clash(
            f"trainer.mix.{name}",
            f"trainer.mix names {name!r}, which is not in run.harnesses ({', '.join(config.run.harnesses)})",
            f"add {name!r} to run.harnesses, or take it out of trainer.mix",
        )
    if not any(trainer.mix.get(name, 1) for name in config.run.harnesses):
        yield Clash("trainer.mix", "trainer.mix gives every harness the weight 0", "give one of them more than 0")


def _machine(config: Config) -> Iterator[Clash]:
    trainer = config.trainer
    if trainer.backend == "megatron" and not trainer.gpus:
        yield Clash(
            "trainer.backend",
            'trainer.backend = "megatron" needs GPUs, and trainer.gpus = 0',
            'set trainer.gpus, or trainer.backend = "fsdp2"',
        )
    if trainer.mode == "separate_async" and trainer.gpus == 1:
        yield Clash(
            "trainer.mode",
            'trainer.mode = "separate_async" trains and samples on GPUs of their own, and trainer.gpus = 1',
            'set trainer.gpus to 2 or more, or trainer.mode = "sync"',
        )
    if trainer.gpus > 8 and trainer.gpus % 8:
        yield Clash(
            "trainer.gpus",
            f"trainer.gpus = {trainer.gpus} is more than one machine of 8 and no whole number of them",
            "set a multiple of 8; for other machines set trainer.nnodes and n_gpus_per_node in [trainer.verl]",
        )
    if trainer.optimizer == "muon" and (trainer.backend == "megatron" or trainer.gpus > 1):
        yield Clash(
            "trainer.optimizer",
            'trainer.optimizer = "muon" works on whole matrices: FSDP over one device',
            'use trainer.optimizer = "adamw"',
        )


def _lengths(config: Config) -> Iterator[Clash]:
    prompt, response, limit = config.trainer.prompt_length, config.trainer.response_length, config.policy.max_model_len
    if prompt + response > limit or limit in (prompt, response):
        told = f"trainer.prompt_length = {prompt} and trainer.response_length = {response}"
        yield Clash(
            "trainer.response_length" if response else "trainer.prompt_length",
            f"{told} do not fit policy.max_model_len = {limit}",
            "their sum is at most policy.max_model_len; 0 takes what the other leaves",
        )
