"""A sandbox as a process: what the command sees, what it cannot do, and that nothing of it survives."""

import asyncio
import os
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.runtimes.base import Exit, Limits, Spec
from cluster.runtimes.gateway import raise_open_files
from cluster.runtimes.process import ProcessRuntime
from cluster.runtimes.stragglers import marked

pytestmark = pytest.mark.contract

Shell = Callable[..., "asyncio.Future[tuple[Exit, str]]"]


def limits(**changes: float) -> Limits:
    values = {"wall_s": 20.0, "cpu_s": 20, "memory_bytes": 1 << 30, "disk_bytes": 1 << 28, **changes}
    return Limits(**values)  # type: ignore[arg-type]


async def shell(runtime: ProcessRuntime, command: str, network: bool = False, **changes: float) -> tuple[Exit, str]:
    folder = runtime.new_folder()
    log = folder / "log"
    layout = runtime.layout(folder)
    env = {"PATH": layout.path, "HOME": layout.home}
    try:
        ended = await runtime.run(
            Spec(("bash", "-c", command), env, folder, limits(**changes), network=network, log=log)
        )
        return ended, log.read_text(errors="replace") if log.exists() else ""
    finally:
        runtime.remove_folder(folder)


async def test_the_command_sees_constant_paths_and_a_clean_environment(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "leaked")
    ended, said = await shell(runtime, "pwd; echo $HOME; id -u; hostname; env; cat /proc/1/environ | tr '\\0' '\\n'")
    assert ended.code == 0
    assert said.splitlines()[:4] == ["/app", "/home/agent", "1000", "sandbox"]
    assert "leaked" not in said
    assert "OPENFORGE_SANDBOX" not in said


async def test_no_descriptor_and_no_path_of_the_host_comes_along(runtime: ProcessRuntime) -> None:
    _, said = await shell(runtime, "ls /proc/self/fd | wc -l; tr '\\0' ' ' < /proc/1/cmdline; readlink /proc/self/fd/*")
    assert said.split()[0] == "4", said  # 0, 1, 2 and the one that lists them
    assert "openforge-sandboxes" not in said


async def test_it_has_no_capability_and_cannot_get_one(runtime: ProcessRuntime) -> None:
    _, said = await shell(runtime, "grep -E 'Cap(Prm|Eff|Amb)|NoNewPrivs' /proc/self/status")
    assert re.findall(r"Cap\w+:\s+(\w+)", said) == ["0" * 16] * 3
    assert re.search(r"NoNewPrivs:\s+1", said)


@pytest.mark.parametrize(
    "path", ["/x", "/usr/x", "/etc/x", "/opt/x", "/opt/openforge/x", "/dev/x", "/proc/sys/kernel/hostname"]
)
async def test_only_its_own_folders_are_writable(runtime: ProcessRuntime, path: str) -> None:
    ended, _ = await shell(runtime, f"echo x > {path}")
    assert ended.code != 0


async def test_the_store_the_repository_and_the_host_are_not_there(runtime: ProcessRuntime, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("store")
    repository = Path(__file__).parents[3]
    home = Path.home()
    ended, _ = await shell(runtime, f"cat {secret} || ls {repository} || ls {home}/.ssh || ls /home/*/..{home}/.cache")
    assert ended.code != 0
    _, said = await shell(runtime, "ls /proc | grep -c '^[0-9]'; ls /home")
    assert int(said.split()[0]) < 12  # its own processes, not this machine's
    assert said.split()[1:] == ["agent"]


async def test_nothing_but_the_relay_answers_on_the_network(runtime: ProcessRuntime) -> None:
    """The host's loopback is another one, and there is no way out."""
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        probe = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
        for host, number in (("127.0.0.1", port), ("1.1.1.1", 443), ("10.0.0.1", 80)):
            ended, said = await shell(runtime, f"python3 -c '{probe}' {host} {number}", network=True)
            assert ended.code == 1, said
            assert "refused" in said or "unreachable" in said


async def test_the_relay_carries_many_connections_and_big_bodies_both_ways(runtime: ProcessRuntime) -> None:
    size = 3_000_000

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(data[::-1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    await runtime.reach(0, 1, server.sockets[0].getsockname()[1])
    program = f"""
import socket, concurrent.futures
def one(n):
    link = socket.create_connection(("127.0.0.1", 8001)); data = bytes([n]) + b"x" * {size}
    link.sendall(data); link.shutdown(socket.SHUT_WR)
    got = b"".join(iter(lambda: link.recv(1 << 20), b""))
    return got == data[::-1]
with concurrent.futures.ThreadPoolExecutor(8) as pool: print(all(pool.map(one, range(16))))
"""
    async with server:
        ended, said = await shell(runtime, f"python3 - <<'E'\n{program}\nE", network=True)
    assert (ended.code, said.strip()) == (0, "True")


FLOOD = """
import os, socket
def alive(link):
    link.settimeout(5)
    try:
        link.sendall(b"x")
        return link.recv(1) == b"x"
    except OSError:
        return False
def connect():
    link = socket.socket({family})
    link.connect({address})
    return link
links = [connect() for _ in range(500)]
print(sum(map(alive, links)))
for link in links: link.close()
import time; time.sleep(1)
print(alive(connect()))
"""


@pytest.mark.parametrize(
    ("family", "address"),
    [("socket.AF_INET", '("127.0.0.1", 8001)'), ("socket.AF_UNIX", '"/opt/openforge/site.sock"')],
    ids=["relay", "socket"],
)
async def test_a_flood_of_connections_meets_a_bound_and_costs_the_others_nothing(
    runtime: ProcessRuntime, family: str, address: str
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, backlog=1000)
    await runtime.reach(0, 1, server.sockets[0].getsockname()[1])
    program = FLOOD.format(family=family, address=address)
    async with server:
        ended, said = await shell(runtime, f"python3 - <<'E'\n{program}\nE", network=True)
    assert ended.code == 0, said
    assert said.split()[:2] == ["64", "True"]


def test_the_limit_on_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_recorder_that_is_gone_looks_like_a_closed_connection(runtime: ProcessRuntime) -> None:
    await runtime.reach(0, 1, 1)
    program = "import socket; link = socket.create_connection(('127.0.0.1', 8001), 5); print(link.recv(1))"
    ended, said = await shell(runtime, f'python3 -c "{program}"', network=True)
    assert "b''" in said or "reset" in said.lower(), (ended, said)


async def test_d01_over_its_time_it_ends_and_so_does_everything_it_started(runtime: ProcessRuntime) -> None:
    started = time.monotonic()
    ended, _ = await shell(runtime, "setsid sleep 1234.5 & (trap '' TERM; sleep 1234.5) & sleep 1234.5", wall_s=1)
    assert ended.reason == "time"
    assert ended.code is None
    assert time.monotonic() - started < 5
    assert not running("1234.5")


async def test_h07_what_outlives_the_command_dies_with_the_sandbox(runtime: ProcessRuntime) -> None:
    ended, _ = await shell(runtime, "setsid nohup sleep 1235.5 >/dev/null 2>&1 & disown; exit 3")
    assert (ended.reason, ended.code) == ("exit", 3)
    assert not running("1235.5")


async def test_k04_cancelling_leaves_no_process_and_is_raised_again(runtime: ProcessRuntime) -> None:
    task = asyncio.create_task(shell(runtime, "sleep 1236.5 & sleep 1236.5"))
    await until(lambda: len(running("1236.5")) >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not running("1236.5")


async def test_h04_killing_everything_it_can_reach_ends_only_itself(runtime: ProcessRuntime) -> None:
    ended, _ = await shell(runtime, "kill -9 -1; sleep 5")
    assert ended.reason == "signal"
    ended, _ = await shell(runtime, "pkill -9 bwrap; pkill -9 python; pkill -9 -f supervisor; kill -9 $$")
    assert ended.reason == "signal"
    assert (await shell(runtime, "echo alive"))[1].strip() == "alive"


async def test_a_fork_bomb_meets_the_limit_on_processes(runtime: ProcessRuntime) -> None:
    count = """
import os
try:
    for n in range(2000):
        if not os.fork():
            os.execvp("sleep", ["sleep", "9"])
except OSError:
    print(n)
"""
    ended, said = await shell(runtime, f"python3 -c '{count}'")
    assert ended.code == 0
    assert 100 < int(said) < 300


async def test_memory_of_many_processes_counts_together(runtime: ProcessRuntime) -> None:
    hog = "python3 -c \"import time; x = b'1' * (90 << 20); time.sleep(15)\" & "
    ended, _ = await shell(runtime, hog * 3 + "wait", memory_bytes=200 << 20)
    assert ended.reason == "memory"


SHARED = """
import mmap, time
m = mmap.mmap(-1, 300 << 20)
for _ in range(300): m.write(b"1" * (1 << 20))
time.sleep(15)
"""
DETACHED = """
import ctypes, time
libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(0, 300 << 20, 0o1600)
at = libc.shmat(segment, None, 0); ctypes.memset(at, 1, 300 << 20); libc.shmdt(ctypes.c_void_p(at)); time.sleep(15)
"""


@pytest.mark.parametrize("hog", [SHARED, DETACHED], ids=["mapped", "detached"])
async def test_shared_memory_counts(runtime: ProcessRuntime, hog: str) -> None:
    ended, said = await shell(runtime, f"python3 - <<'E'\n{hog}\nE", memory_bytes=200 << 20)
    assert ended.reason == "memory", said


async def test_memory_that_processes_share_counts_once(runtime: ProcessRuntime) -> None:
    program = """
import mmap, os, time
private, shared = b"1" * (40 << 20), mmap.mmap(-1, 40 << 20)
shared.write(b"1" * (40 << 20))
for _ in range(5):
    if not os.fork():
        sum(shared[::4096]); time.sleep(2); os._exit(0)
for _ in range(5): os.wait()
"""
    ended, said = await shell(runtime, f"python3 - <<'E'\n{program}\nE", memory_bytes=200 << 20)
    assert (ended.reason, ended.code) == ("exit", 0), said


async def test_one_process_over_the_limit_is_refused_the_memory(runtime: ProcessRuntime) -> None:
    ended, said = await shell(runtime, "python3 -c \"b'1' * (500 << 20)\"", memory_bytes=200 << 20)
    assert ended.code == 1
    assert "MemoryError" in said


async def test_disk_is_bounded_file_by_file_and_together(runtime: ProcessRuntime) -> None:
    ended, _ = await shell(runtime, "head -c 50M /dev/zero > big", disk_bytes=10 << 20)
    assert ended.code != 0
    many = "for i in 1 2 3 4 5; do head -c 8M /dev/zero > /tmp/$i; done; sleep 9"
    ended, _ = await shell(runtime, many, disk_bytes=10 << 20)
    assert ended.reason == "disk"


UNLINKED = "exec 3>x; rm x; head -c 8M /dev/zero >&3; exec 4>y; rm y; head -c 8M /dev/zero >&4; sleep 9"
MEMFD = """python3 -c "
import os, time
f = [os.memfd_create('x') for _ in range(2)]; [os.write(d, b'1' * (8 << 20)) for d in f]; time.sleep(9)" """
CLOSED = "mkdir c; for i in 1 2 3; do head -c 8M /dev/zero > c/$i; done; chmod 0 c; sleep 9"
DEEP = """python3 -c "
import os, time
for _ in range(20): os.mkdir('n' * 250); os.chdir('n' * 250)
for n in '12': open(n, 'wb').write(b'1' * (8 << 20))
time.sleep(9)" """


@pytest.mark.parametrize("hide", [UNLINKED, MEMFD, CLOSED, DEEP], ids=["unlinked", "memfd", "closed", "deep"])
async def test_room_that_is_hidden_counts(runtime: ProcessRuntime, hide: str) -> None:
    ended, said = await shell(runtime, hide, disk_bytes=10 << 20)
    assert ended.reason == "disk", said


async def test_k08_a_flood_of_output_is_capped_and_does_not_block(runtime: ProcessRuntime) -> None:
    ended, said = await shell(runtime, "seq 1 3000000")
    assert ended.code == 0
    assert len(said) < 5 << 20
    assert "output cut here" in said


async def test_k28_arguments_arrive_as_they_are(runtime: ProcessRuntime) -> None:
    folder = runtime.new_folder()
    argv = ("python3", "-c", "import sys; print(sys.argv[1:])", 'a "b"', "c\nd", "", "$HOME")
    layout = runtime.layout(folder)
    await runtime.run(Spec(argv, {"PATH": layout.path}, folder, limits(), log=folder / "log"))
    assert (folder / "log").read_text().strip() == repr(list(argv[3:]))


async def test_a_command_that_is_not_there_says_so(runtime: ProcessRuntime) -> None:
    folder = runtime.new_folder()
    ended = await runtime.run(Spec(("no-such-program",), {"PATH": "/usr/bin"}, folder, limits(), log=folder / "log"))
    assert ended.code == 127
    assert "no-such-program" in (folder / "log").read_text()


async def test_files_that_resist_are_removed(runtime: ProcessRuntime) -> None:
    folder = runtime.new_folder()
    command = "mkdir -p a/b && touch a/b/c && ln -s /etc loop && chmod 000 a/b a && chmod 500 ."
    await runtime.run(Spec(("bash", "-c", command), {"PATH": "/usr/bin:/bin"}, folder, limits()))
    runtime.remove_folder(folder)
    assert not folder.exists()


async def test_two_runtimes_at_once_do_not_touch_each_other(runtime: ProcessRuntime) -> None:
    other = ProcessRuntime("require")
    await other.start()
    folder = other.new_folder()
    await other.close()
    assert not folder.exists()
    assert (await shell(runtime, "echo still here"))[1].strip() == "still here"


async def test_s02_descriptors_stay_flat(runtime: ProcessRuntime) -> None:
    await shell(runtime, "true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await shell(runtime, "true", network=True)
    assert len(os.listdir("/proc/self/fd")) < before + 10  # one leaked by each would be 20; others open some too


async def test_without_isolation_nothing_survives_either(isolated: None) -> None:
    runtime = ProcessRuntime("off")
    assert runtime.enforced.isolation == "advisory"
    await runtime.start()
    ended, _ = await shell(runtime, "setsid sleep 1237.5 & sleep 1237.5", wall_s=1)
    assert ended.reason == "time"
    assert not running("1237.5")
    await runtime.close()


def running(mark: str) -> list[int]:
    """PIDs whose command line holds `mark`, sandboxes included: their processes are seen from here."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if f"sleep\0{mark}".encode() in line:
            found.append(int(entry))
    return found


async def until(condition: Callable[[], bool], wait_s: float = 10.0) -> None:
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def test_marks_find_only_their_own() -> None:
    assert marked("OPENFORGE_SANDBOX", "no such value") == []
