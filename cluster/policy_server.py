"""The policy as a local vLLM server: started, waited for, shared between runs, stopped with all its children.

A server that already serves the same model (by content) with the same settings is adopted through a state file in
`<cache>/servers/`. Every user of a server holds a shared lock on it; the last one to leave stops it, unless it was
started to stay. When its API process dies alone, what it had started is ended as well. Knows nothing about tokens or
rollouts.
"""

import asyncio
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import aiohttp

from cluster.detached import Detached, free_port, spawn, start_ticks, stat_fields
from openforge.cache import building, cache_dir
from openforge.errors import InfraError

Say = Callable[[str], None]
_ROOT = Path(__file__).resolve().parent.parent
_START_S = 600.0
_SAY_EVERY_S = 10.0
_STOP_S = 20.0
_KILLED_S = 5.0
_LOCK_S = 0.2
_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads starve everything else on a small machine
    "GOMP_SPINCOUNT": "0",
}


@dataclass(frozen=True)
class Serving:
    """What a server serves, and how. Two equal ones can share a server."""

    model_dir: Path
    served_name: str = "policy"
    dtype: str = "float32"
    max_model_len: int = 16384


@dataclass(frozen=True)
class _Running(Detached):
    """The state file."""

    port: int
    keep: bool
    scratch: str = ""
    model: str = ""


@dataclass(frozen=True)
class Server:
    """One that a state file names. `keep`: it outlives its users."""

    pid: int
    port: int
    keep: bool
    model: str
    alive: bool


def servers() -> list[Server]:
    """Those that were started on this machine and not stopped; nothing is asked of them."""
    found = (_recorded(path) for path in sorted((cache_dir() / "servers").glob("*.json")))
    return [Server(one.pid, one.port, one.keep, one.model, one.alive()) for one in found if one is not None]


class PolicyServer:
    """A server in use. `died` is set when its process ends; `weight_version` names the weights it serves."""

    def __init__(self, url: str, pid: int, weight_version: str, adopted: bool, lease: IO[str], state: Path) -> None:
        self.url, self.pid, self.weight_version, self.adopted = url, pid, weight_version, adopted
        self.died = asyncio.Event()
        self._lease, self._state = lease, state
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        end_session(self.pid, _log(self._state))
        self.died.set()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # it may be our child or not; nobody else waits for it

    async def leave(self) -> bool:
        """Stop using the server; True when that stopped it, since nobody else uses it and it was not to stay."""
        fcntl.flock(self._lease, fcntl.LOCK_UN)
        stopped = False
        async with _lock(self._state):  # who starts one meanwhile waits, and finds all of it or nothing
            with self._lease, suppress(BlockingIOError):
                fcntl.flock(self._lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                running = _recorded(self._state)
                if running is not None and running.pid == self.pid and not (running.keep and running.alive()):
                    await stop_server(self._state, self.died)
                    stopped = True
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        return stopped


async def use_policy_server(serving: Serving, say: Say = lambda text: None, *, keep: bool = False) -> PolicyServer:
    """Adopt a server of the same model and settings, or start one (`keep`: it outlives its users). InfraError."""
    version = model_hash(serving.model_dir)
    settings = [version, serving.served_name, serving.dtype, serving.max_model_len]
    key = hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()
    folder = cache_dir() / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / f"{key}.json"
    async with _lock(state, say):
        running = _recorded(state)
        adopted = running is not None and running.alive() and await _healthy(running.port)
        if running is None or not adopted:
            await stop_server(state)
            running = await _start(serving, state, _log(state), say, keep)
        else:
            say(f"policy: using the server on port {running.port} that serves this model already")
        lease = (folder / f"{key}.lease").open("w")
        fcntl.flock(lease, fcntl.LOCK_SH)
    return PolicyServer(f"http://127.0.0.1:{running.port}", running.pid, version[:12], adopted, lease, state)


def model_hash(folder: Path) -> str:
    """32 hex characters over the files of a model folder."""
    if not (folder / "config.json").is_file():
        raise InfraError(f"{folder} is not a model folder: it has no config.json", hint="openforge policy list")
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def command(serving: Serving, port: int) -> list[str]:
    """argv of vLLM for what is to be served."""
    argv = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(serving.model_dir)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", serving.served_name]
    argv += ["--dtype", serving.dtype, "--max-model-len", str(serving.max_model_len)]
    return [*argv, "--enforce-eager", "--max-num-seqs", "16"]


async def stop_server(state: Path, died: asyncio.Event | None = None, *, patience_s: float = _STOP_S) -> None:
    """End the server of a state file with all its children, and forget it; by force after `patience_s`."""
    running = _recorded(state)
    if running is not None:
        if running.alive():
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)  # its own group: engine and workers go with it
            if not await _gone(running, patience_s):
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
        end_session(running.pid, _log(state))
        await _gone(running, _KILLED_S)
        if running.scratch:
            shutil.rmtree(running.scratch, ignore_errors=True)
    _forget(state)
    if died is not None:
        died.set()


def end_session(leader: int, log: Path) -> None:
    """SIGKILL to every process of the session that `leader` began, dead or alive, until none is left.

    A number may belong to another session by now, so only processes whose output goes to the server's log count. Their
    environment would not tell: vLLM's processes write their titles over it.
    """
    for _ in range(20):
        members = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_member(pid, leader, log)]
        if not members:
            return
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_member(pid: int, leader: int, log: Path) -> bool:
    fields = stat_fields(pid)
    if not fields or fields[0] == "Z" or int(fields[3]) != leader:
        return False
    try:
        return any(os.path.samefile(f"/proc/{pid}/fd/{number}", log) for number in (1, 2))
    except OSError:
        return False  # it ended, or is not ours


async def _gone(running: _Running, wait_s: float) -> bool:
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s:
        if not running.alive():
            return True
        await asyncio.sleep(0.1)
    return False


async def _start(serving: Serving, state: Path, log: Path, say: Say, keep: bool) -> _Running:
    port = free_port()
    environment = {**os.environ, **vllm_environment()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without .pyc every start parses a quarter of a million lines
    argv = command(serving, port)
    say(f"policy: starting vLLM for {serving.model_dir.name} on port {port}; this takes about a minute")
    scratch = environment["TMPDIR"] = tempfile.mkdtemp(prefix="openforge-vllm-")  # it leaves its sockets behind
    process = spawn(argv, environment, log)
    running = _Running(process.pid, start_ticks(process.pid), port, keep, scratch, serving.model_dir.name)
    partial = state.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(running)))
    partial.rename(state)
    try:
        await _wait_healthy(process, port, log, say)
    except BaseException:
        await stop_server(state, patience_s=1.0)  # vLLM does not listen while it imports, and has nothing to save
        raise
    return running


async def _wait_healthy(process: subprocess.Popen[bytes], port: int, log: Path, say: Say) -> None:
    started_s = said_s = time.monotonic()
    while not await _healthy(port):
        now_s = time.monotonic()
        if process.poll() is not None:
            raise InfraError(f"vLLM ended with {process.returncode} while starting:\n{_tail(log)}", hint=f"see {log}")
        if now_s - started_s > _START_S:
            raise InfraError(f"vLLM was not ready after {_START_S:g} s:\n{_tail(log)}", hint=f"see {log}")
        if now_s - said_s > _SAY_EVERY_S:
            said_s = now_s
            say(f"policy: starting, {now_s - started_s:.0f} s")
        await asyncio.sleep(0.5)
    say(f"policy: ready after {time.monotonic() - started_s:.0f} s")


async def _healthy(port: int) -> bool:
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            async with http.get(f"http://127.0.0.1:{port}/health") as response:
                return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def vllm_environment() -> dict[str, str]:
    """What vLLM needs in its environment on this machine, PYTHONPATH whole. InfraError when it is not installed."""
    alias = _alias()
    paths = os.pathsep.join(filter(None, [alias, alias and str(_ROOT), os.environ.get("PYTHONPATH")]))
    return {**_ENV, "OMP_NUM_THREADS": str(os.cpu_count() or 1), "PYTHONPATH": paths}


def _alias() -> str:
    """A folder that lets vLLM find its own version and our plug-in when it is the CPU build, whose package has another
    name; else empty."""
    try:
        version = importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        try:
            importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError as error:
            raise InfraError("vLLM is not installed, and a local policy needs it", hint="./just train-set") from error
        return ""
    folder = cache_dir() / "vllm-alias-1"
    info = folder / f"vllm-{version}+cpu.dist-info"
    with nullcontext(None) if info.is_dir() else building(info) as made:
        if made is None:
            return str(folder)
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
        (made / "entry_points.txt").write_text("[vllm.general_plugins]\nopenforge = cluster.vllm_cpu:load\n")
    return str(folder)


def _recorded(path: Path) -> _Running | None:
    """The server a state file names, which may be dead."""
    try:
        return _Running(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _log(state: Path) -> Path:
    return state.with_suffix(".log")


def _forget(state: Path) -> None:
    state.unlink(missing_ok=True)


@asynccontextmanager
async def _lock(state: Path, say: Say = lambda text: None) -> AsyncIterator[None]:
    """Held by who starts or stops the server of a state file; may take as long as vLLM's start."""
    with state.with_suffix(".lock").open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say("policy: another program is starting or stopping this server; waiting for it")
                told = True
                await asyncio.sleep(_LOCK_S)
        yield


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-15:])
