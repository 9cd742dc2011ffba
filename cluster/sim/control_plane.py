"""The simulated cluster's processes: etcd, the API server, the controllers, the scheduler, and kwok in place of nodes.

They are Kubernetes' own programs, built from Go modules; no container and no root is needed. They outlive the command
that started them, as a kind cluster does, and answer on this machine only. A file in their folder says which they are.
"""

import json
import os
import re
import secrets
import shutil
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cluster import go_programs
from cluster.detached import Detached, free_port, spawn
from cluster.docker import Say
from cluster.node_image import build
from cluster.sim import kwok
from cluster.sim.fleet_file import Fleet
from openforge.cache import cache_dir, locked
from openforge.errors import InfraError
from openforge.program import run_program

_MODULES = Path(__file__).parent / "programs"
_READY_S = 60.0
_FAULT = re.compile(r'^panic: |no space|"level":"(?:error|panic|fatal)"|^[EF]\d{4} ', re.IGNORECASE)
_ENV = {"GOGC": "400"}  # collect garbage seldom: time is scarcer here than memory
_SERVICES = "10.96.0.0/16"
_CONTROLLERS = (  # those that have to do with pods and nodes; each of the others would look at every change of a pod
    "namespace-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
)
API = "kube-apiserver"
ORDER = ("etcd", API, "kube-controller-manager", "kube-scheduler", "kwok")
State = Literal["ready", "broken", "absent"]


@dataclass(frozen=True)
class ControlPlane:
    """One simulated cluster. `broken`: some of its processes have died."""

    name: str
    state: State
    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"


@dataclass
class _Note:
    """What is remembered: ports, each program's command line and process, the fleet that its nodes were made for."""

    ports: dict[str, int]
    commands: dict[str, list[str]]
    processes: dict[str, dict[str, int]]
    fleet: str = ""


def ensure_programs(say: Say) -> dict[str, Path]:
    """Every program of it: those of the node image and kwok. Minutes of Go the first time."""
    kubernetes = build.ensure_programs(say)
    simulator = go_programs.ensure(_MODULES, {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, say)
    return {name: (simulator if name == "kwok" else kubernetes) / name for name in (*ORDER, "kubectl")}


def up(name: str, fleet: Fleet, say: Say) -> ControlPlane:
    """Start it, or find it ready; its nodes are those of `fleet` afterwards. InfraError."""
    programs = ensure_programs(say)
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(_lock()):
        found = status(name)
        note = _read(folder)
        wanted = fleet.model_dump_json(include={"nodes", "pods"})
        if found.state == "ready" and note is not None and note.fleet == wanted:
            return found
        if found.state != "absent":
            say(f"simulated cluster {name}: {'another fleet' if found.state == 'ready' else 'half of it died'}")
            _end(folder)
        began = time.monotonic()
        folder.mkdir(exist_ok=True)
        try:
            note = _start(folder, programs, fleet, say)
            _make_nodes(folder, note, programs["kubectl"], fleet, say)
        except BaseException:
            _end(folder, keep_logs=True)
            raise
        note.fleet = wanted
        _write(folder, note)
        say(f"simulated cluster {name} was made in {time.monotonic() - began:.0f} s")
        return status(name)


def down(name: str) -> bool:
    """End all of its processes and forget it; False when there is none."""
    folder = _folder(name)
    if not folder.is_dir():
        return False
    with locked(_lock()):
        _end(folder)
    return True


def status(name: str) -> ControlPlane:
    folder = _folder(name)
    note = _read(folder)
    if note is None:
        return ControlPlane(name, "absent", folder)
    alive = all(Detached(**told).alive() for told in note.processes.values()) and set(note.processes) == set(ORDER)
    return ControlPlane(name, "ready" if alive and note.fleet else "broken", folder)


def kill(plane: ControlPlane, program: str) -> None:
    """SIGKILL to one of its programs: a fault."""
    if note := _read(plane.folder):
        _kill([Detached(**note.processes[program])])


def revive(plane: ControlPlane, program: str) -> None:
    """Start a program that was killed, as it was."""
    note = _read(plane.folder)
    if note is not None and not Detached(**note.processes[program]).alive():
        _spawn(plane.folder, note, program)


def _start(folder: Path, programs: Mapping[str, Path], fleet: Fleet, say: Say) -> _Note:
    ports = {name: free_port() for name in ("api", "etcd", "peer", "kwok")}
    token = secrets.token_hex(16)
    kubeconfig, tokens, key = folder / "kubeconfig", folder / "tokens.csv", folder / "service-account.key"
    for path, text in (
        (tokens, f"{token},admin,admin,system:masters\n"),
        (kubeconfig, _kubeconfig(ports["api"], token)),
    ):
        path.touch(mode=0o600)
        path.write_text(text)
    run_program(["openssl", "genrsa", "-out", str(key), "2048"], step="making a key", brief=True)
    (folder / "kwok.json").write_text("\n---\n".join(json.dumps(part) for part in kwok.configuration(fleet)))
    etcd, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "peer"))
    manager = ["--kubeconfig", str(kubeconfig), "--secure-port=0", "--leader-elect=false"]
    manager += ["--kube-api-qps=500", "--kube-api-burst=500"]
    arguments = {
        "etcd": [
            *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level=warn"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ],
        API: [
            *("--etcd-servers", etcd, "--bind-address=127.0.0.1", "--secure-port", str(ports["api"])),
            *("--cert-dir", str(folder / "certs"), "--token-auth-file", str(tokens), "--authorization-mode=RBAC"),
            *("--service-cluster-ip-range", _SERVICES, "--service-account-issuer=https://kubernetes.default.svc"),
            *("--service-account-key-file", str(key), "--service-account-signing-key-file", str(key)),
            "--disable-admission-plugins=ServiceAccount",
        ],
        "kube-controller-manager": [*manager, "--controllers", ",".join(_CONTROLLERS)],
        "kube-scheduler": manager,
        "kwok": [
            *("--kubeconfig", str(kubeconfig), "--config", str(folder / "kwok.json")),
            *("--server-address", f"127.0.0.1:{ports['kwok']}"),
        ],
    }
    note = _Note(ports, {name: [str(programs[name]), *arguments[name]] for name in ORDER}, {})
    for program in ORDER:
        say(f"starting {program}")
        _spawn(folder, note, program)
        if program == API:
            _wait_until(folder, note, "/readyz", lambda told: True)
    return note


def _spawn(folder: Path, note: _Note, program: str) -> None:
    process = spawn(note.commands[program], {**os.environ, **_ENV}, folder / f"{program}.log", append=True)
    note.processes[program] = asdict(Detached.of(process.pid))
    _write(folder, note)


def _wait_until(folder: Path, note: _Note, path: str, fits: Callable[[bytes], bool]) -> None:
    """Ask the API server until its answer fits. InfraError when a program has ended, or it takes too long."""
    end_s = time.monotonic() + _READY_S
    token = (folder / "tokens.csv").read_text().partition(",")[0]
    asked = urllib.request.Request(
        f"https://127.0.0.1:{note.ports['api']}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    trusting = ssl._create_unverified_context()  # its certificate is of this start, and the port of this machine
    while True:
        dead = [name for name, told in note.processes.items() if not Detached(**told).alive()]
        if dead or time.monotonic() > end_s:
            what = f"{dead[0]} ended" if dead else f"{path} was not as it should be after {_READY_S:g} s"
            log = folder / f"{dead[0] if dead else API}.log"
            raise InfraError(f"simulated cluster: {what}: {_last_words(log)}", hint=f"see {log}")
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(asked, context=trusting, timeout=5) as told,
        ):
            if fits(told.read()):
                return
        time.sleep(0.1)


def _make_nodes(folder: Path, note: _Note, kubectl: Path, fleet: Fleet, say: Say) -> None:
    nodes = [kwok.node(name, group) for group in fleet.nodes for name in group.names()]
    listed = folder / "nodes.json"
    listed.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    base = [str(kubectl), "--kubeconfig", str(folder / "kubeconfig")]
    say(f"kubectl create: {len(nodes)} nodes")
    run_program([*base, "create", "--filename", str(listed)], step="making the nodes", timeout_s=300)
    _wait_until(folder, note, "/api/v1/nodes", lambda told: all(map(kwok.is_ready, json.loads(told)["items"])))


def _kubeconfig(port: int, token: str) -> str:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": server}],
            "users": [{"name": "sim", "user": {"token": token}}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
            "current-context": "sim",
        }
    )


def _end(folder: Path, *, keep_logs: bool = False) -> None:
    """Kill the processes, which have nothing to save, and remove what they left."""
    note = _read(folder)
    _kill([Detached(**told) for told in (note.processes if note else {}).values()])
    for path in list(folder.iterdir()) if keep_logs else ():
        if path.suffix != ".log":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not keep_logs:
        shutil.rmtree(folder)


def _kill(processes: Sequence[Detached]) -> None:
    """Returns when they are dead."""
    while alive := [process for process in processes if process.alive()]:
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)


def _last_words(log: Path) -> str:
    """The last line that names a fault, or else the last; Go's programs end with where they were."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    faults = [line for line in lines if _FAULT.search(line)]
    return (faults or lines or ["it said nothing"])[-1].strip()[-300:]


def _lock() -> Path:
    return cache_dir() / "sim" / ".lock"


def _folder(name: str) -> Path:
    return cache_dir() / "sim" / name


def _read(folder: Path) -> _Note | None:
    try:
        return _Note(**json.loads((folder / "control-plane.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(folder: Path, note: _Note) -> None:
    partial = folder / "control-plane.partial"
    partial.write_text(json.dumps(asdict(note)))
    partial.rename(folder / "control-plane.json")
