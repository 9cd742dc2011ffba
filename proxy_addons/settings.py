"""What one recorder process is told on its standard input: one JSON object on one line."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MODEL_HOSTS = (
    "api.openai.com",
    "api.anthropic.com",
    "generativelanguage.googleapis.com",
    "policy.internal",
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class EngineSettings(_Strict):
    """Where answers come from. `url` may end with `/v1` or not; without one, `trainer` waits to be told (`Policy`).
    `weight_version` is what a fixed model is called."""

    kind: Literal["vllm", "trainer", "openai"] = "vllm"
    url: str = ""
    model: str
    api_key: str = ""
    weight_version: str = "0"

    @model_validator(mode="after")
    def _check(self) -> "EngineSettings":
        if not self.url and self.kind != "trainer":
            raise ValueError(f"engine.url must say where {self.kind} is")
        return self


def _address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # .port raises ValueError
        raise ValueError("must be http://HOST:PORT")
    return value.rstrip("/")


class Policy(_Strict):
    """Where the live policy is asked, and which weights it has now. No address: its trainer is away."""

    addresses: tuple[Annotated[str, AfterValidator(_address)], ...] = ()
    token: str = ""
    weight_version: str


class Sampling(_Strict):
    """The run's own sampling. `max_tokens` is the most that one answer may have."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    max_tokens: int = Field(default=256, ge=1)


class RecorderConfig(_Strict):
    """Everything a recorder needs. Ports of 0 mean a free one; the ready line says which."""

    run_id: str
    run_dir: Path
    mode: Literal["train", "record"] = "train"
    engine: EngineSettings
    model_dir: Path | None = None
    renderer: Literal["auto", "qwen3", "template"] = "auto"
    enable_thinking: bool | None = None
    sampling: Sampling = Sampling()
    max_model_len: int = Field(default=16384, ge=1)
    keep_alive_s: float = Field(default=15.0, gt=0)
    max_body_bytes: int = Field(default=256 << 20, ge=64 << 20)
    control_secret: str
    ca_dir: Path
    hosts: tuple[str, ...] = MODEL_HOSTS
    host: str = "127.0.0.1"
    admin_host: str = "127.0.0.1"
    proxy_port: int = 0
    site_port: int = 0
    admin_port: int = 0
    durability: Literal["interval", "fsync"] = "interval"

    @model_validator(mode="after")
    def _check(self) -> "RecorderConfig":
        if self.mode == "train" and self.model_dir is None:
            raise ValueError("mode train needs model_dir: the folder with the policy's tokenizer")
        if (self.mode == "record") != (self.engine.kind == "openai"):
            allowed = "train takes vllm or trainer, record openai"
            raise ValueError(f"mode {self.mode} cannot use engine {self.engine.kind}: {allowed}")
        if not self.control_secret:
            raise ValueError("control_secret must not be empty")
        if not _loopback(self.admin_host) and (len(self.control_secret) < 24 or len(set(self.control_secret)) < 8):
            raise ValueError(f"control_secret is too weak to listen on {self.admin_host}: 24 random characters or more")
        return self


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
