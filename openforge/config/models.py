"""What may stand in `openforge.toml`, as frozen models: one class a table.

Every value has a default, so an empty file is a valid experiment. The models know nothing about files, the environment
or precedence (see load.py), and nothing about what a model, task or harness name means.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict

_SIZE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti)?")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def size_bytes(text: str) -> int:
    """Bytes of a size as Kubernetes writes it: `512Mi`, `4Gi`, `1048576`. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("expected a size such as 512Mi or 4Gi")
    return int(float(match[1]) * _UNITS[match[2]])


def _checked_size(text: str) -> str:
    size_bytes(text)
    return text


def _tri_state(value: object) -> object:
    return None if value == "default" else value


Size = Annotated[str, AfterValidator(_checked_size)]
Strings = Annotated[tuple[str, ...], Strict(False)]  # TOML arrays arrive as lists
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Sampling(_Table):
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = -1
    """-1 = no limit."""
    max_tokens: Positive = 256
    """Most tokens one answer may have."""


class Policy(_Table):
    model: str = "starter"
    """A built-in name (`starter`, `smollm2`), a folder in Hugging Face's layout, or the provider's own model name."""
    engine: Literal["vllm", "openai"] = "vllm"
    """`vllm` samples tokens and can be trained; `openai` only passes text through, for recording."""
    base_url: str = ""
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
    samples: Positive = 1
    """Rollouts for each task and harness."""
    concurrency: Positive = 4
    mode: Literal["train", "record"] = "train"
    time_limit_s: Seconds = 600
    max_calls: Positive = 30
    max_tokens: Positive = 100_000
    """Most tokens a rollout may cause, prompts included."""
    seed: int = 0
    retries: Annotated[int, Field(ge=0)] = 1
    """New attempts after an error that was ours, never after the agent's own failure."""


class Sandbox(_Table):
    runtime: str = "process"
    cpu: Annotated[float, Field(gt=0)] = 4
    memory: Size = "4Gi"
    open_files: Positive = 1024
    cpu_seconds: Positive = 600
    disk: Size = "2Gi"
    egress: Literal["proxy-only"] = "proxy-only"
    egress_allow: Strings = ()
    """host or host:port that every task may reach through the recorder."""
    isolation: Literal["auto", "require", "off"] = "auto"
    """bubblewrap: where it works, or an error where it does not, or never."""


class Recorder(_Table):
    keep_alive_s: Seconds = 15
    max_body: Size = "256Mi"
    durability: Literal["interval", "fsync"] = "interval"
    """`interval`: fsync at most once a second; `fsync`: after every call."""


class Store(_Table):
    path: str = ".openforge"
    """Relative to the folder of openforge.toml."""


class Trainer(_Table):
    verl: dict[str, Any] = Field(default_factory=dict)
    """Passed through to veRL untouched."""


class Target(_Table):
    """Where rollouts run. `[target.NAME]` may also override any other table."""

    name: str = "local"
    kind: Literal["local", "kind", "kubernetes"] = "local"
    context: str = ""
    namespace: str = "openforge"
    registry: str = ""
    queue: str = ""
    gpu: Annotated[int, Field(ge=0)] = 0
    node_selector: dict[str, str] = Field(default_factory=dict)


class _Tables(_Table):
    policy: Policy = Policy()
    run: Run = Run()
    sandbox: Sandbox = Sandbox()
    recorder: Recorder = Recorder()
    store: Store = Store()
    trainer: Trainer = Trainer()


class Overlay(Target, _Tables):
    """One `[target.NAME]` table as it stands in a file."""


class ConfigFile(_Tables):
    """A file as a person writes it, all targets included."""

    version: Literal[1] = 1
    target: dict[str, Overlay] = Field(default_factory=dict)


class Config(_Tables):
    """What a run uses: every layer merged, one target chosen."""

    version: Literal[1] = 1
    target: Target = Target()
