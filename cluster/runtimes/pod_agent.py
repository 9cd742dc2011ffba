"""What runs in a rollout's pod beside its commands. Standard library only, Python 3.11; it knows nothing of OpenForge.

This is PID 1 of a container: it starts one command at a time, keeps its output and how it ended, and ends what is left
of it. The words of pod_words.py ask it for that over a socket.

The commands of a container and these words run as one user, so a command could meddle with a word that runs beside it,
but not with PID 1: that one takes no signals from inside and is not traceable. So what a word says of an untrusted
command counts only when PID 1 has killed everything but itself first (`strict`), which ends the word, too: it is asked
again.
"""

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # left out by -I

from cluster.runtimes.pod_protocol import END, OUT, SOCKET, UNTRUSTED

_OUTPUT_CAP = 4 << 20
_READ_BYTES = 1 << 16


class Command:
    """One command, from its start to its end and for as long as somebody may ask for it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.pid = plan, 0
        self.output = bytearray()
        self.dropped = 0
        self.status: dict[str, Any] | None = None
        self.changed = asyncio.Event()
        self.started_s = time.monotonic()
        self.over = ""

    def write(self, data: bytes) -> None:
        room = max(0, _OUTPUT_CAP - len(self.output))
        self.output += data[:room]
        self.dropped += len(data) - len(data[:room])
        self.tell()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Agent:
    """PID 1."""

    def __init__(self) -> None:
        self.commands: dict[str, Command] = {}
        self.waiting: dict[int, Callable[[int], None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: nobody in here may trace it
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self.reap)
        stopping = asyncio.Event()
        told = end_signals()
        loop.add_reader(told, lambda: stopping.set() if from_outside(told) else None)
        SOCKET.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self.answer, str(SOCKET))
        await stopping.wait()
        kill_all()
        server.close()

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if ended := self.waiting.pop(pid, None):
                self.cpu_s = usage.ru_utime + usage.ru_stime
                ended(status)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            request = json.loads(await reader.readline())
            word = request["word"]
            if word == "run":
                self.start(request["plan"])
                await self.follow(writer, request["plan"]["id"], 0)
            elif word == "attach":
                await self.follow(writer, request["id"], request["offset"])
            elif word == "untrusted":
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(UNTRUSTED)
                server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                server.bind(UNTRUSTED)
                server.listen(4)
                self.own(asyncio.create_task(self.serve_untrusted(server, request["plan"])))
                writer.write(b"{}\n")
                await writer.drain()
        writer.close()

    def own(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def follow(self, writer: asyncio.StreamWriter, name: str, offset: int) -> None:
        """Its output from `offset` on, as it comes, then how it ended. No command of that name ends at once."""
        command = self.commands.get(name)
        while command is not None:
            changed, status = command.changed, command.status
            if data := bytes(command.output[offset:]):
                offset += len(data)
                writer.write(OUT + len(data).to_bytes(4, "big") + data)
                await writer.drain()
            if status is not None:
                told = json.dumps(status).encode()
                writer.write(END + len(told).to_bytes(4, "big") + told)
                await writer.drain()
                return
            await changed.wait()
        writer.write(END + (4).to_bytes(4, "big") + b"null")
        await writer.drain()

    def start(self, plan: dict[str, Any]) -> None:
        """Start a command, once: the same name again is the same command."""
        if plan["id"] in self.commands:
            return
        command = self.commands[plan["id"]] = Command(plan)
        read, write = os.pipe()
        os.set_blocking(read, False)
        kills = oom_kills()
        null = os.open(os.devnull, os.O_RDONLY)
        command.pid = spawn(plan, (null, write, write))
        os.close(null)
        os.close(write)
        loop = asyncio.get_running_loop()
        loop.add_reader(read, self.read, command, read)
        deadline = loop.call_later(plan["wall_s"], self.end, command, "time")
        disk = loop.create_task(self.watch_disk(command)) if plan.get("disk_bytes") else None

        def ended(status: int) -> None:
            deadline.cancel()
            if disk is not None:
                disk.cancel()
            cpu_s = self.cpu_s
            if plan["strict"]:
                kill_all()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(command.pid, signal.SIGKILL)
            while self.read(command, read):  # what it wrote last; everyone who could write more is dead
                pass
            with contextlib.suppress(OSError):
                loop.remove_reader(read)
                os.close(read)
            if command.dropped:
                command.output += b"\n[output cut here]\n"
            over = command.over or ("memory" if oom_kills() > kills else "")
            command.status = how(status, over, time.monotonic() - command.started_s, cpu_s)
            command.status["files"] = {path: read_file(path) for path in plan.get("read", ())}
            command.tell()

        self.waiting[command.pid] = ended

    def read(self, command: Command, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_reader(descriptor)
            return False
        command.write(data)
        return True

    def end(self, command: Command, why: str) -> None:
        command.over = why
        if command.plan["strict"]:
            kill_all()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)

    async def watch_disk(self, command: Command) -> None:
        """End it when its folders take more room than they may."""
        while True:
            await asyncio.sleep(2)
            if await asyncio.to_thread(disk_bytes, command.plan["folders"]) > command.plan["disk_bytes"]:
                self.end(command, "disk")
                return

    async def serve_untrusted(self, server: socket.socket, plan: dict[str, Any]) -> None:
        """Run what the verifier in the other container does not trust in here, where its secrets are not."""
        loop = asyncio.get_running_loop()
        while True:
            link, _ = await loop.sock_accept(server)
            try:
                await self.run_untrusted(link, plan)
            except (OSError, ValueError, KeyError):
                continue
            finally:
                link.close()

    async def run_untrusted(self, link: socket.socket, bounds: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(link, readable.set)
        await readable.wait()
        loop.remove_reader(link)
        data, descriptors, _, _ = socket.recv_fds(link, 1 << 17, 3)
        request = json.loads(data)
        done: asyncio.Future[int] = loop.create_future()
        plan = {**bounds, "argv": request["argv"], "cwd": request["cwd"]}
        pid = spawn(plan, tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        self.waiting[pid] = done.set_result
        late = False
        try:
            status = await asyncio.wait_for(asyncio.shield(done), bounds["wall_s"])
        except TimeoutError:
            late = True
        kill_all()
        if late:
            status = await done
        code = 124 if late else os.waitstatus_to_exitcode(status)
        link.send(str(code if code >= 0 else 128 - code).encode())


def spawn(plan: dict[str, Any], stdio: tuple[int, ...]) -> int:
    """A new session with the command in it. One that cannot be started says so in its output and ends with 127."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 16)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for name, most in (plan.get("limits") or {}).items():
            resource.setrlimit(getattr(resource, name), (most, most))
        os.chdir(plan["cwd"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])
    except BaseException as error:
        os.write(2, f"cannot start {plan['argv'][0]}: {error}\n".encode())
    os._exit(127)


def how(status: int, over: str, duration_s: float, cpu_s: float) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    reason = over or ("exit" if code >= 0 else "signal")
    return {
        "reason": reason,
        "code": code if reason == "exit" else None,
        "signal": -code if code < 0 else 0,
        "duration_s": duration_s,
        "cpu_s": cpu_s,
    }


def end_signals() -> int:
    """A descriptor (Linux's signalfd) that tells of each SIGTERM and of who sent it: a handler would not know."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    mask = (ctypes.c_ulong * 16)(1 << (signal.SIGTERM - 1))
    return int(ctypes.CDLL(None).signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC))


def from_outside(told: int) -> bool:
    """Whether the container is being stopped: who sends from outside has no number here. A command may not end us."""
    return int.from_bytes(os.read(told, 128)[12:16], sys.byteorder) == 0


def kill_all() -> None:
    """Everything in this container but PID 1, until nothing is left; children are reaped on the way by `reap`."""
    if os.getpid() != 1:
        return  # in a test, not in a container
    for _ in range(1000):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        if not any(alive(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"):
            return
        time.sleep(0.001)


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def oom_kills() -> int:
    """How many processes of this container the kernel has killed for memory."""
    for place in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(place).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def disk_bytes(folders: list[str]) -> int:
    total = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def read_file(path: str) -> dict[str, Any]:
    """The first bytes of a regular file, or what it is instead."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return {"problem": f"no reward was written ({error.strerror})"}
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return {"problem": "the reward is not a regular file"}
        return {"data": base64.b64encode(os.read(descriptor, 1 << 12)).decode()}
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which PID 1 does not get; Python's own would end us
    asyncio.run(Agent().serve())
