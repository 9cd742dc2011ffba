"""The first program inside a process sandbox: starts the command under its limits, relays two ports, watches, ends.

Standard library only, one file, run as `python -I -S supervisor.py PLAN_FD`: inside there is no OpenForge to import.
When it ends, the sandbox's PID namespace ends with it, so nothing the command left running survives. The plan comes on
one file descriptor, the result leaves on another; the command inherits neither.
"""

import json
import os
import resource
import selectors
import signal
import socket
import stat
import sys
import time
from typing import Any

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
BUFFER = 1 << 18
MAX_LINKS = 64  # as many as the host takes


class Link:
    """Two connected sockets: bytes that come from one go to the other, at the pace of the slower one."""

    count = 0

    def __init__(self, selector: selectors.BaseSelector, a: socket.socket, b: socket.socket) -> None:
        self.selector, self.ends, self.peer = selector, (a, b), {a: b, b: a}
        self.out = {a: bytearray(), b: bytearray()}
        self.ended: set[socket.socket] = set()
        self.shut: set[socket.socket] = set()
        Link.count += 1
        self.watch()

    def ready(self, end: socket.socket, events: int) -> None:
        try:
            if events & READ:
                data = end.recv(65536)
                self.out[self.peer[end]] += data
                if not data:
                    self.ended.add(end)
            for sink in self.ends:
                if self.out[sink]:
                    del self.out[sink][: sink.send(self.out[sink])]
                if not self.out[sink] and self.peer[sink] in self.ended and sink not in self.shut:
                    self.shut.add(sink)
                    sink.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if len(self.shut) == 2:
            self.close()
        else:
            self.watch()

    def watch(self) -> None:
        for end in self.ends:
            wanted = WRITE if self.out[end] else 0
            if end not in self.ended and len(self.out[self.peer[end]]) < BUFFER:
                wanted |= READ
            known = self.selector.get_map().get(end)
            if known and wanted:
                self.selector.modify(end, wanted, self)
            elif known:
                self.selector.unregister(end)
            elif wanted:
                self.selector.register(end, wanted, self)

    def close(self) -> None:
        Link.count -= 1
        for end in self.ends:
            if self.selector.get_map().get(end):
                self.selector.unregister(end)
            end.close()


def listen(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(128)
    server.setblocking(False)
    return server


def accept(selector: selectors.BaseSelector, server: socket.socket, path: str) -> None:
    """A connection that is too many, or whose other side is gone, is closed: the client tries again as it likes."""
    try:
        client, _ = server.accept()
    except OSError:
        return  # it left already
    if Link.count >= MAX_LINKS:
        client.close()
        return
    upstream = socket.socket(socket.AF_UNIX)
    try:
        upstream.connect(path)
    except OSError:
        upstream.close()
        client.close()
        return
    client.setblocking(False)
    upstream.setblocking(False)
    Link(selector, client, upstream)


def limit(kind: int, value: int) -> None:
    """Soft = hard, and never above what is allowed already."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def start(plan: dict[str, Any]) -> int:
    """Fork the command. A root supervisor gives it another user, mapped to 1000 in a user namespace of its own: the
    limit on processes does not bind root, and counts per namespace."""
    drop = plan["drop"]
    asks, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        if drop:
            os.read(asks[0], 1)
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{child}/{name}", "w") as file:
                    file.write(f"1000 {drop} 1")
            become(drop)
            os.write(answers[1], b".")
        for descriptor in (*asks, *answers):
            os.close(descriptor)
        return child
    try:
        os.setsid()
        if drop:
            become(drop)
            os.unshare(os.CLONE_NEWUSER)
            os.write(asks[1], b".")
            os.read(answers[0], 1)
        limits = plan["limits"]
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_CPU, limits["cpu_s"])
        limit(resource.RLIMIT_DATA, limits["memory_bytes"])
        limit(resource.RLIMIT_NOFILE, limits["open_files"])
        limit(resource.RLIMIT_FSIZE, limits["disk_bytes"])
        if plan["namespace"]:
            limit(resource.RLIMIT_NPROC, limits["processes"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        os.chdir(plan["cwd"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])
    except OSError as error:
        os.write(2, f"cannot start {plan['argv'][0]}: {error}\n".encode())
    os._exit(127)


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def processes() -> list[str]:
    return [f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit()]


def memory_bytes() -> int:
    """Memory of every process here, without pages of files: what several share is split among them, so counted once.
    Shared memory segments that nobody is attached to come on top."""
    total = 0
    for process in processes():
        total += fields_kb(f"{process}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) or fields_kb(
            f"{process}/status", ("RssAnon:", "RssShmem:")
        )
    try:
        with open("/proc/sysvipc/shm") as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        rows = []
    return total * 1024 + sum(int(row[14]) for row in rows if row[6] == "0")


def fields_kb(path: str, names: tuple[str, ...]) -> int:
    """The sum of some lines of a /proc file; 0 when it ended while we looked, or does not let us."""
    try:
        with open(path) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(names))
    except OSError:
        return 0


def unlinked_bytes() -> int:
    """Room of files that are open but have no name any more, in memory or on disk: no count of folders finds them."""
    found: dict[tuple[int, int], int] = {}
    for process in processes():
        try:
            for name in os.listdir(f"{process}/fd"):
                status = os.stat(f"{process}/fd/{name}")
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
        except OSError:
            continue  # it ended, or closed the file, while we looked
    return sum(found.values())


def main() -> None:
    plan_fd = int(sys.argv[1])
    with open(plan_fd, "rb") as file:
        plan = json.load(file)
    status_fd = plan["status_fd"]
    os.set_inheritable(status_fd, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    for port, path in plan["relay"]:
        selector.register(listen(port), READ, path)
    wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector.register(wake, READ, None)
    child = start(plan)
    reason, look_at_memory, look_at_files = "", 0.0, 0.0
    while not reason:
        for key, events in selector.select(0.5):
            if not isinstance(key.fileobj, socket.socket):
                os.read(wake, 64)
            elif isinstance(key.data, Link):
                key.data.ready(key.fileobj, events)
            else:
                accept(selector, key.fileobj, key.data)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            reason = "signal" if os.WIFSIGNALED(status) else "exit"
        elif plan["namespace"] and time.monotonic() > look_at_files:
            look_at_files = time.monotonic() + 2
            reason = "disk" if unlinked_bytes() > plan["limits"]["disk_bytes"] else ""
        elif plan["namespace"] and time.monotonic() > look_at_memory:
            look_at_memory = time.monotonic() + 0.4
            reason = "memory" if memory_bytes() > plan["limits"]["memory_bytes"] else ""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {"reason": reason, "code": None, "cpu_s": usage.ru_utime + usage.ru_stime}
    if reason == "exit":
        result["code"] = os.WEXITSTATUS(status)
    elif reason == "signal":
        result["signal"] = os.WTERMSIG(status)
    os.write(status_fd, json.dumps(result).encode())


if __name__ == "__main__":
    main()
