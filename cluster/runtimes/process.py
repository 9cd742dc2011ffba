"""Sandboxes as processes of this machine: bubblewrap where it works, else a plain process group that is only advisory.

What holds with bubblewrap: own PID, network, mount, IPC and host name spaces; the command sees read-only system
folders, its own work, home and temporary folder, and two loopback ports that lead to the recorder. Memory and disk of
a sandbox are looked at every 0.5 s and 2 s, so a burst can pass for that long; RLIMIT_DATA and RLIMIT_FSIZE bound each
process at once. Its folders are measured from outside, where none is closed; open files without a name are counted
inside, by themselves. Not isolated: the kernel, CPU time shares, and what /usr holds.
"""

import asyncio
import fcntl
import json
import os
import signal
import stat
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Literal

from cluster.runtimes import bwrap
from cluster.runtimes.base import Enforced, Exit, Layout, Mount, Order, Reason, Spec
from cluster.runtimes.folders import disk_bytes, own_tree, remove_tree
from cluster.runtimes.gateway import MAX_LINKS, Gateway, Ports, raise_open_files
from cluster.runtimes.process_sandbox import ProcessSandbox, process_sandbox
from cluster.runtimes.stragglers import kill_marked
from cluster.workspace import StartFiles
from openforge.errors import InfraError

_LOG_CAP = 4 << 20
_DEATH_S = 10.0
_LOOK_S, _COUNT_S = 2.0, 30.0
_OVER = {"memory": "over its memory limit", "disk": "over its disk limit"}
_PREFIX = "openforge-sandboxes-"
_PORTS = {"proxy": 3128, "site": 8001}
_MARK = "OPENFORGE_SANDBOX"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ProcessRuntime:
    """See the module. `isolation`: `auto`, `require` (InfraError where bubblewrap does not work) or `off`."""

    name = "process"
    room: int | None = None

    def __init__(self, isolation: Literal["auto", "require", "off"] = "auto", keep_start_files: int = 64) -> None:
        problem = 'switched off by [sandbox] isolation = "off"' if isolation == "off" else bwrap.probe()
        if problem and isolation == "require":
            raise InfraError(
                f"no isolated sandbox on this machine: {problem}",
                hint='install bubblewrap, or set [sandbox] isolation = "auto" to go on without',
            )
        self.isolated = not problem
        self.enforced = _enforced(self.isolated, problem)
        _remove_abandoned()
        self._base = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = (self._base / ".new").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self._base / ".new").rename(self._base / ".lock")  # nobody may see a lock that is not held yet
        bwrap.write_etc(self._base / "etc")
        self._ports: defaultdict[int, Ports] = defaultdict(Ports)  # by shard
        self._start_files = StartFiles(self, keep_start_files)

    async def start(self) -> None:
        raise_open_files()

    async def close(self) -> None:
        await self._start_files.close()
        remove_tree(self._base)
        self._lock.close()

    async def reach(self, shard: int, proxy_port: int, site_port: int) -> None:
        self._ports[shard].proxy, self._ports[shard].site = proxy_port, site_port

    def sandbox(self, order: Order) -> AbstractAsyncContextManager[ProcessSandbox]:
        return process_sandbox(self, self._start_files, order)

    def layout(self, folder: Path, harness: Path | None = None, node: Path | None = None, shard: int = 0) -> Layout:
        if not self.isolated:
            return self._open_layout(folder, harness, node, self._ports[shard])
        python = bwrap.python_inside()
        return Layout(
            work="/app",
            home="/home/agent",
            temp="/tmp",
            path=f"/opt/node/bin:{Path(python).parent}:{_PATH}",
            python=python,
            harness="/opt/harness",
            node="/opt/node",
            tests="/tests",
            orig="/orig",
            verifier="/logs/verifier",
            ca="/opt/openforge/ca.pem",
            site=f"http://127.0.0.1:{_PORTS['site']}",
            proxy=f"127.0.0.1:{_PORTS['proxy']}",
        )

    def _open_layout(self, folder: Path, harness: Path | None, node: Path | None, ports: Ports) -> Layout:
        python = os.path.realpath(sys.executable)
        tools = [str(node / "bin")] if node else []
        return Layout(
            work=str(folder / "work"),
            home=str(folder / "home"),
            temp=str(folder / "tmp"),
            path=":".join([*tools, str(Path(python).parent), _PATH]),
            python=python,
            harness=str(harness or ""),
            node=str(node or ""),
            tests=str(folder / "tests"),
            orig=str(folder / "orig"),
            verifier=str(folder / "verifier"),
            ca=str(folder / "ca.pem"),
            site=f"http://127.0.0.1:{ports.site}",
            proxy=f"127.0.0.1:{ports.proxy}",
        )

    def tools(self, harness: Path | None, node: Path | None) -> tuple[Mount, ...]:
        if not self.isolated:
            return ()
        pairs = ((harness, "/opt/harness"), (node, "/opt/node"))
        return tuple(Mount(source, target) for source, target in pairs if source is not None)

    def new_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="s", dir=self._base))
        places = [folder / name for name in ("work", "home", "tmp")]
        for place in places:
            place.mkdir()
        if self.isolated and bwrap.is_root():
            for place in (folder, *places):  # empty: nothing in it that could lead elsewhere
                os.chown(place, bwrap.SANDBOX_USER, bwrap.SANDBOX_USER)
        return folder

    def own(self, folder: Path) -> None:
        if self.isolated and bwrap.is_root():
            own_tree(folder, bwrap.SANDBOX_USER)

    def remove_folder(self, folder: Path) -> None:
        remove_tree(folder)

    async def run(self, spec: Spec) -> Exit:
        if not (spec.network and self.isolated):
            return await self._run(spec)
        started_s = time.monotonic()
        try:
            async with Gateway(spec.folder, self._ports[spec.shard]) as gateway:
                ended = await self._run(spec, gateway)
        except OSError as error:
            return Exit("lost", None, f"sandbox did not start: {error}", time.monotonic() - started_s, started=False)
        if gateway.refused and spec.log is not None:
            with spec.log.open("a") as file:
                file.write(f"\n[{gateway.refused} connections refused: a sandbox has {MAX_LINKS} at once]\n")
        return ended

    async def _run(self, spec: Spec, gateway: Gateway | None = None) -> Exit:
        mark = os.urandom(12).hex()
        if not self.isolated:
            _link_mounts(spec)
        status_read, status_write = os.pipe()
        plan_read, plan_write = os.pipe()
        info_read, info_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        given = (
            bwrap.options_file(self._options(spec, info_write, gateway))
            if self.isolated
            else os.open(os.devnull, os.O_RDONLY)
        )
        inherited: tuple[int, ...] = (status_write, plan_read, info_write, given)
        started_s = time.monotonic()
        process: asyncio.subprocess.Process | None = None
        pump: asyncio.Task[None] | None = None
        try:
            stdin, stdout, stderr = spec.stdio or (
                asyncio.subprocess.DEVNULL,
                asyncio.subprocess.PIPE,
                asyncio.subprocess.STDOUT,
            )
            process = await asyncio.create_subprocess_exec(
                *self._argv(given, plan_read),
                env={} if self.isolated else {_MARK: mark},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=inherited,
            )
            for descriptor in inherited:
                os.close(descriptor)
            inherited = ()
            with os.fdopen(plan_write, "wb") as file:  # smaller than a pipe's buffer but for huge instructions
                plan_write = -1
                await asyncio.to_thread(file.write, json.dumps(self._plan(spec, status_write, mark)).encode())
                await asyncio.to_thread(file.close)
            pump = asyncio.create_task(_pump(process.stdout, spec.log)) if process.stdout else None
            over = await _watch(process, spec)
            await self._end(process, pump, mark, info_read)
            status = os.read(status_read, 4096)
            return _exit(status, over, process.returncode, time.monotonic() - started_s, spec.limits.wall_s)
        except OSError as error:
            return Exit("lost", None, f"sandbox did not start: {error}", time.monotonic() - started_s, started=False)
        finally:
            if process is not None:
                await asyncio.shield(self._end(process, pump, mark, info_read))
            for descriptor in (*inherited, status_read, info_read, *([plan_write] if plan_write >= 0 else [])):
                os.close(descriptor)

    async def _end(
        self, process: asyncio.subprocess.Process, pump: asyncio.Task[None] | None, mark: str, info_fd: int
    ) -> None:
        """Every process of the sandbox dead, its output written. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if not self.isolated:
            kill_marked(_MARK, mark)
        await process.wait()
        if self.isolated:
            await bwrap.namespace_gone(info_fd, _DEATH_S)
        if pump is not None and not pump.done():
            done, _ = await asyncio.wait([pump], timeout=_DEATH_S)
            if not done:
                pump.cancel()

    def _argv(self, options_fd: int, plan_fd: int) -> Sequence[str]:
        if not self.isolated:
            program = str(Path(bwrap.__file__).with_name("supervisor.py"))
            return [os.path.realpath(sys.executable), "-I", "-S", program, str(plan_fd)]
        return bwrap.command(options_fd, [bwrap.python_inside(), "-I", "-S", bwrap.SUPERVISOR, str(plan_fd)])

    def _options(self, spec: Spec, info_fd: int, gateway: Gateway | None) -> list[str]:
        work = spec.work or spec.folder / "work"
        mounts = [
            Mount(work, "/app", writable=True),
            Mount(spec.folder / "home", "/home/agent", writable=True),
            Mount(spec.folder / "tmp", "/tmp", writable=True),
            *spec.mounts,
        ]
        if gateway is not None:
            mounts += [
                Mount(gateway.proxy, "/opt/openforge/proxy.sock"),
                Mount(gateway.site, "/opt/openforge/site.sock"),
            ]
        return ["--info-fd", str(info_fd), *bwrap.options(self._base / "etc", mounts)]

    def _plan(self, spec: Spec, status_fd: int, mark: str) -> dict[str, Any]:
        layout = self.layout(spec.folder)
        relay = (
            [[port, f"/opt/openforge/{name}.sock"] for name, port in _PORTS.items()]
            if spec.network and self.isolated
            else []
        )
        return {
            "argv": list(spec.argv),
            "env": {**spec.env, **({} if self.isolated else {_MARK: mark})},
            "cwd": spec.cwd or layout.work,
            "limits": {
                "cpu_s": spec.limits.cpu_s,
                "memory_bytes": spec.limits.memory_bytes,
                "disk_bytes": spec.limits.disk_bytes,
                "open_files": spec.limits.open_files,
                "processes": spec.limits.processes,
            },
            "relay": relay,
            "namespace": self.isolated,
            "drop": bwrap.SANDBOX_USER if self.isolated and bwrap.is_root() else 0,
            "status_fd": status_fd,
        }


async def _watch(process: asyncio.subprocess.Process, spec: Spec) -> Reason | None:
    """Wait for the end of the sandbox; `time` or `disk` when it must be ended instead."""
    ended, full = asyncio.create_task(process.wait()), asyncio.create_task(_over_disk(spec))
    try:
        done, _ = await asyncio.wait({ended, full}, timeout=spec.limits.wall_s, return_when=asyncio.FIRST_COMPLETED)
        return None if ended in done else "disk" if full in done else "time"
    finally:
        ended.cancel()
        full.cancel()
        await asyncio.gather(ended, full, return_exceptions=True)


async def _over_disk(spec: Spec) -> None:
    """Return when the sandbox's folders take more room than they may, or hold too much to be counted."""
    folders = [spec.work or spec.folder / "work", spec.folder / "home", spec.folder / "tmp"]
    with suppress(TimeoutError):
        while True:
            await asyncio.sleep(_LOOK_S)
            if await disk_bytes(folders, _COUNT_S) > spec.limits.disk_bytes:
                return


def _exit(status: bytes, over: Reason | None, returncode: int | None, duration_s: float, wall_s: float) -> Exit:
    told: dict[str, Any] = json.loads(status) if status else {}
    cpu_s = float(told.get("cpu_s", 0.0))
    if over == "time":
        return Exit("time", None, f"no end after {wall_s:g} s", duration_s, cpu_s)
    if over == "disk":
        return Exit("disk", None, _OVER["disk"], duration_s, cpu_s)
    if not told:
        # The supervisor said nothing: the sandbox did not come up, or the command killed everything it could reach.
        killed = returncode in (137, -signal.SIGKILL)
        detail = "every process was killed from inside" if killed else f"sandbox ended with {returncode}"
        return Exit("signal" if killed else "lost", None, detail, duration_s, cpu_s, started=killed)
    reason: Reason = told["reason"]
    detail = _OVER.get(reason, "")
    if reason == "signal":
        detail = f"ended by {signal.Signals(told['signal']).name}"
    return Exit(reason, told["code"], detail, duration_s, cpu_s)


def _link_mounts(spec: Spec) -> None:
    """Without a mount namespace the sandbox's folder gets links at the places that `layout` names."""
    pairs = [(mount.source, Path(mount.target)) for mount in spec.mounts]
    if spec.work is not None:
        (spec.folder / "work").rmdir()
        pairs.append((spec.work, spec.folder / "work"))
    for source, target in pairs:
        if target.is_relative_to(spec.folder) and source != target:
            target.symlink_to(source)


async def _pump(stream: asyncio.StreamReader | None, log: Path | None) -> None:
    """Copy output to the log up to a cap, then read on without keeping, so that the command never blocks on us."""
    assert stream is not None
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    with (log or Path(os.devnull)).open("ab") as file:
        left = _LOG_CAP - file.tell()
        while data := await stream.read(1 << 16):
            if left > 0:
                file.write(data[:left])
                file.flush()
                left -= len(data)
                if left <= 0:
                    file.write(b"\n[output cut here]\n")


def _enforced(isolated: bool, problem: str) -> Enforced:
    limits = {"wall": "yes", "cpu": "per process", "open_files": "per process", "file_size": "per process"}
    if isolated:
        limits |= {
            "memory": "per process at once, per sandbox within 0.5 s",
            "disk": "within 2 s",
            "processes": "per sandbox",
        }
        return Enforced("bubblewrap", "", limits | {"network": "recorder only"})
    limits |= {
        "memory": "per process",
        "disk": "within 2 s",
        "processes": "no",
        "network": "advisory: proxy variables only",
    }
    return Enforced("advisory", problem, limits)


def _remove_abandoned() -> None:
    """Folders of runtimes whose process is gone: nobody holds their lock any more."""
    for base in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            found = base.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            with open(os.open(base / ".lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(base)
        except OSError:
            continue  # alive, someone else's, or being made right now
