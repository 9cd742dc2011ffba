"""What `openforge doctor` looks at, and what it concludes.

`survey` asks the machine; `findings` is pure: facts in, findings out, each with the next command to type. The rest of
the program never consults this: a check here is a hint for a person, not a gate.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openforge.config import Config
from openforge.config.load import FILE_NAME
from openforge.errors import OpenForgeError
from openforge_tui import train_set

GIB = 1 << 30
_ASK_S = 10.0
State = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One check. `note` = works, with a limit worth knowing; `missing` = what is configured here cannot work."""

    check: str
    state: State
    found: str
    next: str = ""


@dataclass(frozen=True)
class Machine:
    """The facts. `harnesses` maps each configured one to None (unknown), or (kind of install, installed)."""

    python: tuple[int, int, int]
    programs: dict[str, str | None]
    bwrap_error: str | None
    cores: int
    memory_bytes: int
    disk_free_bytes: int
    disk_path: str
    store_path: str
    store_error: str | None
    gpu: bool
    train_missing: tuple[str, ...]
    harnesses: dict[str, tuple[str, bool] | None]
    model: str
    model_place: str | None
    base_url: str
    pods: tuple[str, str] | None = None
    """Of targets `kind` and `sim`: why Docker does not answer (empty: it does), and the cluster's state. None: not
    asked."""
    file: bool = True
    """Whether the project has an openforge.toml."""


def survey(config: Config, project: Path, *, pods: bool = True) -> Machine:
    """Look at this machine, for what `config` asks of it. Changes nothing but a probe file in the store's folder.
    `pods`: ask for the cluster as well, which may take long."""
    store = (project / Path(config.store.path).expanduser()).resolve()
    programs = {name: shutil.which(name) for name in ("git", "bwrap", "npm", "uv")}
    return Machine(
        python=sys.version_info[:3],
        programs=programs,
        bwrap_error=_bwrap_error(programs["bwrap"]),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_available_memory(),
        disk_free_bytes=shutil.disk_usage(_existing(store)).free,
        disk_path=str(store),
        store_path=str(store),
        store_error=_write_error(_existing(store)),
        gpu=train_set.has_gpu(),
        train_missing=tuple(train_set.missing()),
        harnesses={name: _harness(name, project) for name in config.run.harnesses},
        model=config.policy.model,
        model_place=_model_place(config.policy.model),
        base_url=config.policy.base_url,
        pods=_pods(config) if pods and config.target.kind in ("kind", "sim") else None,
        file=(project / FILE_NAME).is_file(),
    )


def findings(machine: Machine, config: Config) -> list[Finding]:
    """One finding a check, in the order a person would mend them."""
    found = [_python(machine), _sandbox(machine, config.sandbox.isolation), _npm(machine), _git(machine)]
    found += [_size("memory", machine.memory_bytes, 6, 3, "close other programs, or lower run.concurrency")]
    found += [_size("disk", machine.disk_free_bytes, 10, 2, f"free some space under {machine.disk_path}")]
    found += [_cpu(machine), _store(machine)]
    found += [_harness_finding(name, known) for name, known in machine.harnesses.items()]
    found += _cluster(machine.pods, config) if machine.pods is not None else []
    if config.target.kind == "kubernetes":
        where = config.target.context or "the kubeconfig's current context"
        found.append(Finding("cluster", "note", f"{where}: not asked", f"openforge up --target {config.target.name}"))
    if machine.file:
        found.append(Finding("configuration", "ok", FILE_NAME))
    else:
        found.append(Finding("configuration", "note", f"no {FILE_NAME} here; the defaults hold", "openforge init"))
    return [*found, *_policy(machine)]


def _python(machine: Machine) -> Finding:
    text = ".".join(map(str, machine.python))
    if (3, 12) <= machine.python[:2] <= (3, 13):
        return Finding("python", "ok", text)
    return Finding(
        "python", "missing", f"{text}; 3.12 or 3.13 is needed", "OPENFORGE_PYTHON=/path/to/python3.12 ./just"
    )


def _sandbox(machine: Machine, isolation: str) -> Finding:
    path, error = machine.programs["bwrap"], machine.bwrap_error
    if path and error is None:
        return Finding("sandbox", "ok", f"bubblewrap ({path})")
    if isolation == "off":
        return Finding("sandbox", "note", "isolation is off: rollouts can read your files and reach the network")
    what = f"bubblewrap does not work here: {error}" if path else "bubblewrap is not installed"
    fix = "see docs/adr/0003-process-sandbox.md" if path else "apt-get install bubblewrap"
    if isolation == "require":
        return Finding("sandbox", "missing", f"{what}, and sandbox.isolation is `require`", fix)
    return Finding("sandbox", "note", f"{what}; rollouts run with limits but without walls", fix)


def _pods(config: Config) -> tuple[str, str]:
    from cluster import docker, kind
    from cluster.sim import control_plane

    if config.target.kind == "sim":
        return "", control_plane.status(config.target.cluster).state
    if problem := docker.problem():
        return problem, ""
    try:
        return "", kind.status(config.target.cluster).state
    except OpenForgeError as error:
        return "", error.summary


def cluster_findings(config: Config) -> list[Finding]:
    """Docker and the cluster of a target that lives on this machine."""
    return _cluster(_pods(config), config) if config.target.kind in ("kind", "sim") else []


def _cluster(pods: tuple[str, str], config: Config) -> list[Finding]:
    problem, state = pods
    if problem:
        return [Finding("docker", "missing", f"it does not answer: {problem}", "start Docker; then: openforge up")]
    target = config.target
    fix = "" if state == "ready" else f"openforge up --target {target.name}"
    found = Finding("cluster", "missing" if fix else "ok", f"{target.cluster} is {state}", fix)
    return [found] if target.kind == "sim" else [Finding("docker", "ok", "it answers"), found]


def _npm(machine: Machine) -> Finding:
    asking = [name for name, known in machine.harnesses.items() if known and known[0] == "npm" and not known[1]]
    if machine.programs["npm"]:
        return Finding("npm", "ok", str(machine.programs["npm"]))
    if asking:
        return Finding("npm", "missing", f"not on PATH; {', '.join(asking)} come from npm", "apt-get install npm")
    return Finding("npm", "note", "not on PATH; nothing configured here needs it")


def _git(machine: Machine) -> Finding:
    path = machine.programs["git"]
    return Finding("git", "ok", path) if path else Finding("git", "note", "not on PATH", "apt-get install git")


def _size(check: str, size_bytes: int, enough_gib: int, least_gib: int, fix: str) -> Finding:
    text = f"{size_bytes / GIB:.1f} GiB free"
    if size_bytes < least_gib * GIB:
        return Finding(check, "missing", f"{text}; {least_gib} GiB is the least", fix)
    if size_bytes < enough_gib * GIB:
        return Finding(check, "note", f"{text}; the demo is comfortable with {enough_gib} GiB", fix)
    return Finding(check, "ok", text)


def _cpu(machine: Machine) -> Finding:
    text = f"{machine.cores} cores" + (", NVIDIA GPU" if machine.gpu else ", no GPU (the starter policy needs none)")
    return Finding("cpu", "ok" if machine.cores > 1 else "note", text)


def _store(machine: Machine) -> Finding:
    if machine.store_error is None:
        return Finding("store", "ok", machine.store_path)
    fix = "choose another place with --store or [store] path"
    return Finding("store", "missing", f"{machine.store_path}: {machine.store_error}", fix)


def _harness_finding(name: str, known: tuple[str, bool] | None) -> Finding:
    check = f"harness {name}"
    if known is None:
        return Finding(check, "missing", "there is no such harness", "openforge harness list")
    kind, installed = known
    if installed:
        return Finding(check, "ok", "comes with OpenForge" if kind == "none" else f"installed ({kind})")
    return Finding(check, "note", "not installed yet; `run` and `demo` do it", f"openforge harness install {name}")


def _policy(machine: Machine) -> list[Finding]:
    if machine.base_url:
        return [Finding("policy", "ok", f"{machine.model} at {machine.base_url}")]
    more = len(machine.train_missing) - 4
    lacking = ", ".join(machine.train_missing[:4]) + (f" and {more} more" if more > 0 else "")
    train = (
        Finding("train set", "note", f"{lacking} not installed; `demo` adds it", "./just train-set")
        if lacking
        else Finding("train set", "ok", "torch, veRL and vLLM")
    )
    if machine.model_place:
        return [train, Finding("policy", "ok", f"{machine.model} ({machine.model_place})")]
    fix = f"openforge policy make {machine.model}"
    return [train, Finding("policy", "note", f"{machine.model} is not made yet; `demo` does it", fix)]


def _bwrap_error(program: str | None) -> str | None:
    if program is None:
        return None
    argv = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        tried = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        return f"it did not end in {_ASK_S:g} s"
    return None if tried.returncode == 0 else tried.stderr.strip() or f"exit code {tried.returncode}"


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _write_error(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _harness(name: str, project: Path) -> tuple[str, bool] | None:
    from cluster.install import is_installed
    from openforge.harness import harness_roots, load_harness

    try:
        manifest = load_harness(name, harness_roots(project))
    except OpenForgeError:
        return None
    return manifest.spec.install.kind, is_installed(manifest)


def _model_place(model: str) -> str | None:
    """Where the weights lie, or None when they are not made yet."""
    from openforge_tui import policies

    return policies.find(model)
