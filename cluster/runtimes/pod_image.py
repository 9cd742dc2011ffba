"""What is done inside an image while it is built, so that a harness and a rollout's user can live in a task's own.

Standard library only, Python 3.11. It runs as root, by our own Python: the task's image may have no shell, no libc and
no user but root.
"""

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

OURS = Path("/opt/openforge")
START = OURS / "start"
"""Where the start files are kept: in the pod, a volume lies over the folder that they are in."""
TOOLS = OURS / "tools"
_USER, _HOME = 1000, "/home/agent"
_ROOTS_HOME = Path("/root")
"""Where tools lie that root installed for itself, in Dockerfiles that expect to run as root."""
_ENV_NODE = b"#!/usr/bin/env node"


def carry(node: Path, harness: Path) -> None:
    """Make the harness need nothing of the image that it is copied to, nor of that image's own node."""
    program = node / "bin" / "node"
    if program.exists():
        for entry in node.iterdir():
            if entry.name == "bin" or not entry.is_dir():
                continue
            shutil.rmtree(entry)  # headers and manuals
        loader, libraries = str(OURS / "lib" / "loader"), str(OURS / "lib")
        patch = ["--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, str(program)]
        subprocess.run([str(TOOLS / "patchelf"), *patch], check=True)
    for command in (harness / "node_modules" / ".bin").glob("*"):
        text = command.read_bytes()
        if text.startswith(_ENV_NODE):
            command.write_bytes(b"#!" + os.fsencode(program) + text.removeprefix(_ENV_NODE))


def settle(work: Path) -> None:
    """Keep the start files where no volume will lie over them, and let the rollout's user be somebody."""
    work.mkdir(parents=True, exist_ok=True)
    START.mkdir()
    if entries := [entry.path for entry in os.scandir(work)]:
        subprocess.run([str(TOOLS / "cp"), "-a", "--", *entries, str(START)], check=True)
    give(START)
    for folder in work.parents:
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o111)
    if _ROOTS_HOME.is_dir():
        _ROOTS_HOME.chmod(0o755)
    name_user(Path("/etc"))
    keep_path(Path("/etc/profile.d"), os.environ.get("PATH", ""))


def give(folder: Path) -> None:
    """To the rollout's user, who can then read all of it."""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files + folders:
            path = os.path.join(place, name)
            os.lchown(path, _USER, _USER)
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) | (0o700 if stat.S_ISDIR(mode) else 0o400))
    os.chown(folder, _USER, _USER)


def name_user(etc: Path) -> None:
    """Give the rollout's user a name, unless the image has one for that number."""
    shell = next((shell for shell in ("/bin/sh", str(OURS / "bin" / "bash")) if os.path.exists(shell)), "/bin/sh")
    etc.mkdir(exist_ok=True)
    for file, line in (("passwd", f"agent:x:{_USER}:{_USER}::{_HOME}:{shell}"), ("group", f"agent:x:{_USER}:")):
        path = etc / file
        text = (
            path.read_text() if path.exists() else "root:x:0:0::/root:/bin/sh\n" if file == "passwd" else "root:x:0:\n"
        )
        if not any(entry.split(":")[2:3] == [str(_USER)] for entry in text.splitlines()):
            path.write_text(text + ("" if text.endswith("\n") else "\n") + line + "\n")


def keep_path(profiles: Path, path: str) -> None:
    """A login shell, which is what some harnesses start, would forget the image's PATH for the distribution's own."""
    if path and profiles.is_dir():
        (profiles / "openforge.sh").write_text(f"export PATH={shlex.quote(path)}:/opt/node/bin:/opt/openforge/bin\n")


def main() -> None:
    if sys.argv[1:] == ["carry"]:
        carry(Path("/opt/node"), Path("/opt/harness"))
    elif sys.argv[1:] == ["settle"]:
        settle(Path(os.environ["OPENFORGE_WORK"]))
    else:
        sys.exit(f"no such words: {sys.argv[1:]}")


if __name__ == "__main__":
    main()
