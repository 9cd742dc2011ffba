"""What a runtime is: it runs one command in one sandbox from start to death, and says where things are inside.

The orchestrator and the grader speak only this; a process on this machine and a pod look the same to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Reason = Literal["exit", "signal", "time", "memory", "disk", "lost"]
Isolation = Literal["bubblewrap", "advisory"]


@dataclass(frozen=True)
class Limits:
    """Of one sandbox. `cpu_s` and `open_files` hold for each process, the others for the sandbox as a whole."""

    wall_s: float
    cpu_s: int
    memory_bytes: int
    disk_bytes: int
    open_files: int = 1024
    processes: int = 256


@dataclass(frozen=True)
class Mount:
    """`source` on this machine appears at `target` inside."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Layout:
    """Paths and addresses as seen from inside: the same for every rollout, so that no prompt differs by them."""

    work: str
    home: str
    temp: str
    path: str
    python: str
    harness: str
    node: str
    tests: str
    orig: str
    verifier: str
    ca: str
    site: str
    proxy: str


@dataclass(frozen=True)
class Spec:
    """One sandbox. `folder` holds its `work`, `home` and `tmp`; they outlive it and belong to the caller.

    `stdio` hands three open file descriptors to the command; without it there is no input and the output goes to `log`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    limits: Limits
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    cwd: str = ""
    log: Path | None = None
    stdio: tuple[int, int, int] | None = None
    work: Path | None = None


@dataclass(frozen=True)
class Exit:
    """How it ended; nothing of the sandbox runs any more. `code` is the command's own, None but for reason `exit`."""

    reason: Reason
    code: int | None
    detail: str
    duration_s: float
    cpu_s: float = 0.0
    started: bool = True


@dataclass(frozen=True)
class Enforced:
    """What really holds on this machine, for doctor and for the run's output."""

    isolation: Isolation
    why: str
    limits: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    """`run` returns only when every process of the sandbox is dead, also when it is cancelled."""

    name: str
    enforced: Enforced

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def reach(self, proxy_port: int, site_port: int) -> None:
        """Where the recorder listens on this machine now; a sandbox with `network` reaches these ports and no other."""
        ...

    def layout(self, folder: Path, harness: Path | None = None, node: Path | None = None) -> Layout:
        """What a command in `folder`'s sandbox must call things."""
        ...

    def tools(self, harness: Path | None, node: Path | None) -> tuple[Mount, ...]:
        """The mounts that put a harness and its node where `layout` says."""
        ...

    def new_folder(self) -> Path:
        """An empty sandbox folder with `work`, `home` and `tmp`, of a name that says nothing."""
        ...

    def own(self, folder: Path) -> None:
        """Give what the host put below `folder` to the sandbox's user."""
        ...

    def remove_folder(self, folder: Path) -> None: ...

    async def run(self, spec: Spec) -> Exit: ...
