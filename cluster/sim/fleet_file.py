"""What a fleet file may say: nodes, how pods behave, faults. Strict, and every error names the file and the key."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from openforge.config.models import Version
from openforge.errors import ConfigError

DEFAULT = Path(__file__).with_name("fleet.toml")
_Share = Annotated[float, Field(gt=0, le=1)]
_Second = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
_Span = Annotated[tuple[_Second, _Second], Strict(False)]  # TOML arrays arrive as lists
Kind = Literal["evict", "delete", "oom", "node-lost", "api-down"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Nodes(_Table):
    """Nodes that are alike: `name`-000 and so on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
    count: Annotated[int, Field(gt=0, le=5000)]
    cpu: Annotated[float, Field(gt=0)] = 32
    memory: str = "128Gi"
    pods: Annotated[int, Field(gt=0, le=1000)] = 110

    def names(self) -> list[str]:
        return [f"{self.name}-{number:03}" for number in range(self.count)]


class Pods(_Table):
    start_s: _Span = (0.5, 2.0)
    """From scheduled to running: somewhere between the two."""


class Rollouts(_Table):
    run_s: _Span = (5.0, 20.0)
    """How long a harness runs."""
    reward: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How often it scores 1, else 0."""


class Fault(_Table):
    kind: Kind
    at_s: _Second
    """From the first pod that runs."""
    share: _Share = 1.0
    """Of the pods that run then, or of the nodes."""
    for_s: _Second = 10.0
    """How long a node or the API server stays away."""


class Fleet(_Table):
    """A whole file."""

    version: Version
    nodes: Annotated[tuple[Nodes, ...], Strict(False), Field(min_length=1)]
    pods: Pods = Pods()
    rollouts: Rollouts = Rollouts()
    faults: Annotated[tuple[Fault, ...], Strict(False)] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [name for nodes in self.nodes for name in nodes.names()]
        if len(set(names)) < len(names):
            raise ValueError("two [[nodes]] tables make nodes of the same name")
        for span in (self.pods.start_s, self.rollouts.run_s):
            if span[0] > span[1]:
                raise ValueError(f"{list(span)} should be the shortest and the longest, in this order")
        return self


def read_fleet(path: Path) -> Fleet:
    """ConfigError that names the file, the key and what was expected."""
    try:
        told: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Fleet.model_validate(told)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"fleet file {path}: {error}", hint=f"an example: {DEFAULT}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        told_what = first["msg"].replace("a valid tuple", "an array")
        raise ConfigError(f"{path}: {where}: {told_what}", hint=f"an example: {DEFAULT}") from error
