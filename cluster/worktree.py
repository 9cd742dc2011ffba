"""Makes a folder that an agent wrote safe to hand to the verifier: what could lead it astray or hang it is taken out.

Links that leave the folder would let an agent show the verifier its own expected answer; a FIFO would make it wait for
ever; what is too deep or closed cannot be judged. What is removed is returned, so that it is seen. Regular files are
not judged here.
"""

import hashlib
import os
import stat
from collections import deque
from pathlib import Path

from cluster.runtimes.folders import remove_tree
from openforge.program import run_program

INSIDE = "/app"
_PATH_BYTES = 2048  # half of what the kernel takes: the folder's own path comes on top
_MAX_LINKS = 40  # as many as the kernel follows


def clean_work(root: Path, inside: str = INSIDE) -> list[str]:
    """Remove special files, links that leave `root`, which is called `inside` in the sandbox, and folders that cannot
    be listed. Returns what went."""
    removed: list[str] = []
    links = _links(root, removed)
    for path in links:
        target = os.readlink(path)
        if target == inside or target.startswith(inside + "/"):
            _make_relative(path, os.path.join(root, os.path.relpath(target, inside)))
    # One after the other: a link through one that is gone dangles inside, or is judged to leave.
    for path in links:
        if os.path.islink(path) and _leaves(path, root):
            _remove(path, root, removed)
    return removed


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder as it is: links stay links, times and modes are kept. InfraError when it is too deep to be."""
    target.mkdir(parents=True, exist_ok=True)
    run_program(["cp", "-a", "--", f"{source}/.", str(target)], step="keeping the start files", brief=True)


def _links(root: Path, removed: list[str]) -> list[str]:
    """All links below `root`, after the removal of what is neither link, file nor folder, or cannot be listed."""
    links: list[str] = []
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listed:
                entries = list(listed)
        except FileNotFoundError:
            continue  # it went with a folder that was too deep
        except OSError:
            _remove(folder, root, removed)
            continue
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if len(os.fsencode(entry.path)) - len(os.fsencode(root)) > _PATH_BYTES:
                _remove(folder, root, removed)
                break
            if stat.S_ISLNK(mode):
                links.append(entry.path)
            elif stat.S_ISDIR(mode):
                waiting.append(entry.path)
            elif not stat.S_ISREG(mode):
                _remove(entry.path, root, removed)
    return [link for link in links if os.path.islink(link)]


def _make_relative(path: str, wanted: str) -> None:
    """Absolute inside the sandbox, elsewhere on the host: make the link mean the same in both, or leave it to go."""
    target = os.path.relpath(wanted, os.path.dirname(path))
    if len(os.fsencode(target)) < os.pathconf("/", "PC_PATH_MAX"):
        os.unlink(path)
        os.symlink(target, path)


def _leaves(path: str, root: Path) -> bool:
    """Whether a link leads out of `root` by any step, or nowhere: followed by name as the kernel does, never opened."""
    at = os.path.relpath(os.path.dirname(path), root).split(os.sep)
    at = [] if at == ["."] else at
    steps, followed = deque([os.path.basename(path)]), 0
    while steps:
        step = steps.popleft()
        if step in ("", "."):
            continue
        if step == "..":
            if not at:
                return True
            at.pop()
            continue
        at.append(step)
        try:
            target = os.readlink(os.path.join(root, *at))
        except OSError:
            continue  # no link, or nothing: then it dangles, which is harmless inside
        followed += 1
        if os.path.isabs(target) or followed > _MAX_LINKS:
            return True
        at.pop()
        steps.extendleft(reversed(target.split(os.sep)))
    return False


def _remove(path: str, root: Path, removed: list[str]) -> None:
    if path == str(root):
        return
    try:
        os.unlink(path)
    except OSError:  # a folder, or in one that is closed to writing
        remove_tree(Path(path))
    removed.append(os.fsencode(os.path.relpath(path, root)).decode(errors="replace"))


def fingerprint(folder: Path) -> str:
    """One hash over every path, mode, link and byte."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(folder)}\0{mode:o}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(str(path.readlink()).encode(errors="surrogateescape"))
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
