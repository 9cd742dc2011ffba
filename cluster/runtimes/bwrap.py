"""The command line of bubblewrap for a sandbox: own namespaces, a root of read-only system folders, two writable ones.

Root on this machine needs no user namespace to build the sandbox, and then the supervisor inside changes to a plain
user; everybody else gets a user namespace from bubblewrap. Either way the command runs as user 1000, without
capabilities.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cluster.runtimes.base import Mount

SANDBOX_USER = 65534  # who owns the files outside, when root starts the sandbox
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mime.types")
_ETC_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}
PYTHON = "/opt/python"
SUPERVISOR = "/opt/openforge/supervisor.py"


def is_root() -> bool:
    return os.geteuid() == 0


def write_etc(folder: Path) -> None:
    """The few files below /etc that programs look for; nothing in them names this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _ETC_FILES.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


def options(etc: Path, mounts: Sequence[Mount]) -> list[str]:
    """Options of bwrap. Later mounts lie above earlier ones."""
    argv = ["--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--hostname", "sandbox", "--clearenv"]
    if is_root():
        argv += ["--cap-drop", "ALL"]  # the three are the supervisor's, to make the command's user; it keeps none
        argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SYS_ADMIN"]
    else:
        argv += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    for folder in _parents(mounts):
        argv += ["--perms", "0755", "--dir", folder]  # made on the way they would be closed to all but root
    for path in _SYSTEM:
        if Path(path).is_symlink():
            argv += ["--symlink", os.readlink(path), path]
        elif Path(path).is_dir():
            argv += ["--ro-bind", path, path]
    for name in _ETC_FILES:
        argv += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    for name in _ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--size", str(64 << 20), "--perms", "1777", "--tmpfs", "/dev/shm"]
    argv += _python_mounts()
    argv += ["--ro-bind", str(Path(__file__).with_name("supervisor.py")), SUPERVISOR]
    for mount in mounts:
        argv += ["--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target]
    return [*argv, "--remount-ro", "/dev", "--remount-ro", "/"]


def command(options_fd: int, run: Sequence[str]) -> list[str]:
    """argv of bwrap that runs `run` inside, with its options on a descriptor: a command line can be read from inside,
    and the options name folders of this machine."""
    return [_program(), "--args", str(options_fd), "--", *run]


def options_file(arguments: Sequence[str]) -> int:
    """A descriptor that holds `arguments` as bwrap reads them. The caller closes it."""
    descriptor = os.memfd_create("bwrap")
    os.write(descriptor, b"\0".join(map(os.fsencode, arguments)))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def namespace_gone(info_fd: int, wait_s: float) -> None:
    """Wait until every process of a sandbox is dead. bwrap itself ends a moment earlier; the first process of a PID
    namespace is dead only when all others are. `info_fd`: what bwrap wrote to its --info-fd, never blocking."""
    try:
        told = re.search(rb'"child-pid": (\d+)', os.read(info_fd, 4096))
        process = os.pidfd_open(int(told[1])) if told else -1
    except (BlockingIOError, ProcessLookupError):
        return
    if process < 0:
        return
    loop, dead = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, dead.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(dead.wait(), wait_s)
    finally:
        loop.remove_reader(process)
        os.close(process)


def python_inside() -> str:
    """The interpreter inside: the one this environment is built on, at a path that names neither user nor machine."""
    name = Path(os.path.realpath(sys.executable)).name
    return f"{PYTHON}/bin/{name}" if _moved() else f"{sys.base_prefix}/bin/{name}"


def probe() -> str:
    """Empty when a sandbox can be started here, else why not. Takes about 50 ms."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (`apt-get install bubblewrap`)"
    with tempfile.TemporaryDirectory(prefix="openforge-probe-") as folder:
        write_etc(Path(folder))
        given = options_file(options(Path(folder), ()))
        argv = command(given, [python_inside(), "-I", "-S", "-c", "pass"])
        quiet = subprocess.DEVNULL
        try:
            done = subprocess.run(argv, capture_output=True, timeout=30, env={}, stdin=quiet, pass_fds=(given,))
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap does not start: {error}"
        finally:
            os.close(given)
    if done.returncode:
        return f"bubblewrap does not work here: {done.stderr.decode(errors='replace').strip()[:200]}"
    return ""


def _parents(mounts: Sequence[Mount]) -> list[str]:
    targets = [mount.target for mount in mounts] + ["/etc/passwd", SUPERVISOR, *_python_mounts()[2::3]]
    folders = {str(parent) for target in targets for parent in Path(target).parents}
    return sorted(folders - {"/"})


def _program() -> str:
    return shutil.which("bwrap") or "bwrap"


def _moved() -> bool:
    return not Path(sys.base_prefix).resolve().is_relative_to("/usr")


def _python_mounts() -> list[str]:
    if not _moved():
        return []
    mounts = ["--ro-bind", sys.base_prefix, PYTHON]
    if sysconfig.get_config_var(
        "Py_ENABLE_SHARED"
    ):  # such an interpreter finds its library by the path it was built for
        libraries = str(sysconfig.get_config_var("LIBDIR"))
        mounts += ["--ro-bind-try", libraries, libraries]
    return mounts
