"""What a runtime is: it gives each rollout a sandbox, runs its harness there from start to death, and judges the work.

The orchestrator speaks only `Runtime` and `Sandbox`; a process on this machine and a pod look the same to it. `Runner`
is the half of it that works on folders of this machine: start files, graders and validation speak that.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from cluster.install import Installed
from openforge.config.models import Sandbox as Settings
from openforge.harness import HarnessManifest, Launch
from openforge.task import Task

Reason = Literal["exit", "signal", "time", "memory", "disk", "lost"]
Isolation = Literal["bubblewrap", "advisory", "pod", "simulated"]


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

    @property
    def host(self) -> str:
        """Where the recorder is, without its ports."""
        return self.proxy.rpartition(":")[0]


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
    shard: int = 0
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


@dataclass(frozen=True)
class Grade:
    """`reward` is a finite number, or None when the verifier itself failed: then `problem` says how."""

    reward: float | None
    problem: str
    details: dict[str, Any]
    duration_s: float


@dataclass(frozen=True)
class Order:
    """What a sandbox is for. `task` and `seed` alone say what the start files are; its harness has `wall_s`. `shard` is
    the recorder that it speaks to."""

    rollout_id: str
    attempt: int
    task: Task
    seed: int
    harness: HarnessManifest
    installed: Installed
    settings: Settings
    wall_s: float
    log: Path
    shard: int = 0


class Sandbox(Protocol):
    """One attempt's place, its start files in it."""

    layout: Layout

    async def run(self, launch: Launch, env: Mapping[str, str], ca: Path) -> Exit:
        """Run the harness, its files below the home folder. Every process of it is dead at the return, however that
        comes. InfraError when the start files are unfit."""
        ...

    async def fingerprint(self) -> str:
        """One hash over the untouched start files."""
        ...

    async def grade(self) -> Grade:
        """Run the task's verifier on what was left behind."""
        ...


class Runtime(Protocol):
    """Where rollouts run. Leaving a sandbox leaves nothing of it behind, also when it is cancelled."""

    name: str
    enforced: Enforced
    room: int | None
    """Once it has started: how many sandboxes may be there at once; None = whatever is asked for."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def reach(self, shard: int, proxy_port: int, site_port: int) -> None:
        """Where the recorder of a shard listens now; a harness reaches the ports of its own shard and no other."""
        ...

    def sandbox(self, order: Order) -> AbstractAsyncContextManager[Sandbox]:
        """Entered, it is ready. AttemptError or InfraError when it cannot be."""
        ...


class Runner(Protocol):
    """`run` returns only when every process of the sandbox is dead, also when it is cancelled."""

    enforced: Enforced

    def layout(self, folder: Path, harness: Path | None = None, node: Path | None = None, shard: int = 0) -> Layout:
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
