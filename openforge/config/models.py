"""What may stand in `openforge.toml`, as frozen models: one class a table.

Every value has a default, so an empty file is a valid experiment. The models know nothing about files, the environment
or precedence (see load.py), and nothing about what a model, task or harness name means.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict

_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)(Ki|Mi|Gi|Ti|Pi|Ei)?")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_YEAR_S = 31_536_000
_INT32 = (1 << 31) - 1


def size_bytes(text: str) -> int:
    """Bytes of a size as Kubernetes writes it: `512Mi`, `4Gi`, `1048576`. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("expected a size such as 512Mi or 4Gi")
    return int(float(match[1]) * _UNITS[match[2]])


def _at_least(least: str) -> AfterValidator:
    """A size that a machine may have, and no smaller than what works."""

    def check(text: str) -> str:
        if not size_bytes(least) <= size_bytes(text) <= size_bytes("1Ei"):
            raise ValueError(f"should be between {least} and 1Ei")
        return text

    return AfterValidator(check)


def _limited_top_k(value: int) -> int:
    if not (value == -1 or 1 <= value <= _INT32):
        raise ValueError("should be -1 or at least 1")
    return value


def _web_address(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s/].*", text):
        raise ValueError("should begin with http:// or https:// and a host")
    return text


def _only_an_integer(value: object) -> object:
    return value if type(value) is int else str(value)  # Literal takes `true` and 1.0 for 1


def _tri_state(value: object) -> object:
    return None if value == "default" else value


Strings = Annotated[tuple[str, ...], Strict(False)]  # TOML arrays arrive as lists
Positive = Annotated[int, Field(gt=0, le=_INT32)]
Seconds = Annotated[float, Field(gt=0, le=_YEAR_S, allow_inf_nan=False)]
_Coefficient = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Version = Annotated[Literal[1], BeforeValidator(_only_an_integer)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Sampling(_Table):
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, AfterValidator(_limited_top_k)] = -1
    """-1 = no limit."""
    max_tokens: Positive = 256
    """Most tokens one answer may have."""


class Policy(_Table):
    model: Annotated[str, Field(min_length=1)] = "starter"
    """A built-in name (`starter`, `smollm2`), a folder in Hugging Face's layout, or the provider's own model name."""
    engine: Literal["vllm", "openai"] = "vllm"
    """`vllm` samples tokens and can be trained; `openai` only passes text through, for recording."""
    base_url: Annotated[str, AfterValidator(_web_address)] = ""
    """Where the engine answers; empty = start one here."""
    api_key_env: str = ""
    """The NAME of the environment variable that holds the key; the key itself never stands in a file."""
    served_name: str = "policy"
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    max_model_len: Positive = 16384
    enable_thinking: Annotated[bool | None, BeforeValidator(_tri_state)] = False
    """true, false, or "default" = do not tell the chat template."""
    tokenizer: str = ""
    """A tokenizer folder; in record mode it makes token ids be kept as well."""
    sampling: Sampling = Sampling()


class Run(_Table):
    tasks: Strings = ("desk",)
    """Task sets, single tasks (`desk/count-lines`) or folders."""
    harnesses: Strings = ("react",)
    samples: Annotated[int, Field(gt=0, le=100_000)] = 1
    """Rollouts for each task and harness."""
    concurrency: Annotated[int, Field(gt=0, le=4096)] = 4
    """Rollouts at once."""
    harness_concurrency: dict[str, Positive] = Field(default_factory=dict)
    """Rollouts at once of one harness; one that is not named has all of `concurrency`."""
    mode: Literal["train", "record"] = "train"
    time_limit_s: Seconds = 600
    max_calls: Positive = 30
    max_tokens: Positive = 100_000
    """Most tokens a rollout may cause, prompts included."""
    seed: Annotated[int, Field(ge=-_INT32, le=_INT32)] = 0
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    """New attempts after an error that was ours, never after the agent's own failure."""


class Sandbox(_Table):
    runtime: str = "process"
    cpu: Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)] = 4
    memory: Annotated[str, _at_least("16Mi")] = "4Gi"
    request_cpu: Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)] = 0.002
    request_memory: Annotated[str, _at_least("16Mi")] = "32Mi"
    """What each container of a pod claims of its node, where there are pods; the two above are what it may take."""
    open_files: Annotated[int, Field(ge=64, le=1 << 20)] = 1024
    cpu_seconds: Annotated[int, Field(gt=0, le=_YEAR_S)] = 600
    disk: Annotated[str, _at_least("1Mi")] = "2Gi"
    egress: Literal["proxy-only"] = "proxy-only"
    egress_allow: Strings = ()
    """host or host:port that every task may reach through the recorder."""
    isolation: Literal["auto", "require", "off"] = "auto"
    """bubblewrap: where it works, or an error where it does not, or never."""


class Recorder(_Table):
    shards: Annotated[int, Field(gt=0, le=256)] = 1
    """Recorders of a run; each is one process, and a turn of a long conversation costs it some milliseconds of CPU."""
    keep_alive_s: Seconds = 15
    max_body: Annotated[str, _at_least("64Mi")] = "256Mi"
    durability: Literal["interval", "fsync"] = "interval"
    """`interval`: fsync at most once a second; `fsync`: after every call."""


class Store(_Table):
    path: str = ".openforge"
    """Relative to the folder of openforge.toml."""


class Trainer(_Table):
    """How the policy learns. A recipe names these for a model and a machine; a file overrides what differs."""

    recipe: str = ""
    """A recipe of trainer/recipes (`tiny-cpu`) or a file: a layer beneath your files and above the defaults."""
    mode: Literal["sync", "separate_async"] = "sync"
    """`sync`: rollouts and updates take turns; `separate_async`: rollouts go on, with weights some versions old."""
    steps: Positive = 16
    """Training steps; after each one the rollouts get new weights."""
    groups: Annotated[int, Field(gt=0, le=65_536)] = 12
    """Groups a step. A group is one task inside one harness, and its rollouts are compared with one another."""
    group_size: Annotated[int, Field(ge=2, le=4096)] = 8
    """Rollouts of a group; one alone has nothing to be compared with."""
    lr: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 4e-4
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """`cosine` falls to a tenth of `lr` by the last step."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` holds whole matrices, so it serves models that fit one device."""
    kl: _Coefficient = 0.0
    """Weight of the divergence from the first policy in the loss; 0 loads no reference model."""
    entropy: _Coefficient = 0.0
    """Weight of an entropy bonus in the loss."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio of a token counts down to 1 - clip_low …"""
    clip_high: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 0.28
    """… and up to 1 + clip_high."""
    updates: Annotated[int, Field(gt=0, le=65_536)] = 1
    """Optimizer updates a step, each on an equal part of the groups: `updates` divides `groups`."""
    max_staleness: Annotated[int, Field(gt=0, le=1024)] = 1
    """How many weight versions a sample may lie behind the trainer; `separate_async` only."""
    mix: dict[str, Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]] = Field(default_factory=dict)
    """Weight by harness of the run when groups are drawn; one that is not named weighs 1."""
    eval_every: Annotated[int, Field(ge=-1, le=_INT32)] = 0
    """Steps between evaluations; 0 = before and after training only, -1 = never."""
    eval_samples: Annotated[int, Field(gt=0, le=100_000)] = 8
    """Rollouts for each task and harness of an evaluation."""
    eval_tasks: Strings = ()
    """Empty = run.tasks."""
    eval_harnesses: Strings = ()
    """Empty = run.harnesses."""
    save_every: Positive = 4
    """Steps between checkpoints; the last step is always saved."""
    backend: Literal["fsdp2", "megatron"] = "fsdp2"
    gpus: Annotated[int, Field(ge=0, le=65_536)] = 0
    """GPUs for training and sampling together; 0 = everything on the CPU."""
    prompt_length: Annotated[int, Field(ge=0, le=_INT32)] = 0
    """Most tokens before a sample's first sampled token; 0 = what response_length leaves of policy.max_model_len."""
    response_length: Annotated[int, Field(ge=0, le=_INT32)] = 0
    """Most tokens from there on, tool results included; 0 = what prompt_length leaves of policy.max_model_len."""
    penalize_invalid_calls: bool = True
    """A rollout with a tool call that no harness could run scores 0, else the format decays."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """veRL's own keys, nested or dotted: they come last and are passed through untouched. Keys of `megatron` and
    `fsdp_config` may stand beside one another; those of the chosen backend are taken."""


class App(_Table):
    """How the app looks and which keys it takes."""

    theme: str = "openforge"
    """`openforge`, `openforge-light`, or one of Textual's own (`ansi-dark` takes the terminal's colours)."""
    compact: bool = False
    images: Literal["auto", "kitty", "sixel", "cells"] = "auto"
    """How they are drawn: the best that the terminal is known to do, kitty's graphics, sixels, or half cells."""
    keys: dict[str, str] = Field(default_factory=dict)
    """Other keys for actions, by their id: `"runs.cancel" = "ctrl+x"`; `?` in the app names the ids."""


class Target(_Table):
    """Where rollouts run. `[target.NAME]` may also override any other table."""

    name: str = "local"
    kind: Literal["local", "kind", "sim", "kubernetes"] = "local"
    cluster: str = "openforge"
    """kind and sim: the cluster's name."""
    fleet: str = ""
    """sim: a file of nodes and faults, relative to openforge.toml; empty = ours."""
    node_image: str = ""
    """kind: this node image, not the one chosen."""
    runtime_class: str = ""
    """Pods: a RuntimeClass of the cluster, such as one of gVisor or Kata."""
    context: str = ""
    namespace: str = "openforge"
    registry: str = ""
    queue: str = ""
    gpu: Annotated[int, Field(ge=0, le=4096)] = 0
    per_node: Annotated[int, Field(ge=0, le=1000)] = 0
    """Pods: rollouts at once on each node that is there when a run starts; 0 = what fits."""
    node_selector: dict[str, str] = Field(default_factory=dict)


class _Tables(_Table):
    policy: Policy = Policy()
    run: Run = Run()
    sandbox: Sandbox = Sandbox()
    recorder: Recorder = Recorder()
    store: Store = Store()
    trainer: Trainer = Trainer()
    app: App = App()


class Overlay(Target, _Tables):
    """One `[target.NAME]` table as it stands in a file."""


class ConfigFile(_Tables):
    """A file as a person writes it, all targets included."""

    version: Version = 1
    target: dict[str, Overlay] = Field(default_factory=dict)


class Config(_Tables):
    """What a run uses: every layer merged, one target chosen."""

    version: Version = 1
    target: Target = Target()
