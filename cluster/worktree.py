"""Makes a folder that an agent wrote safe to hand to the verifier: what could lead it astray or hang it is taken out.

Links that leave the folder would let an agent show the verifier its own expected answer; a FIFO would make it wait for
ever. What is removed is returned, so that it is seen. Regular files are not judged here.
"""

import os
import shutil
import stat
from pathlib import Path

INSIDE = "/app"


def clean_work(root: Path, inside: str = INSIDE) -> list[str]:
    """Remove special files and links that leave `root`, which is called `inside` in the sandbox. Returns what went."""
    removed: list[str] = []
    links: list[str] = []
    for folder, names, files in os.walk(root):
        for name in [*names, *files]:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                links.append(path)
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                _remove(path, root, removed)
    for path in links:
        target = os.readlink(path)
        if target == inside or target.startswith(inside + "/"):
            # Absolute inside the sandbox, elsewhere on the host: make it mean the same in both.
            wanted = os.path.join(root, os.path.relpath(target, inside))
            os.unlink(path)
            os.symlink(os.path.relpath(wanted, os.path.dirname(path)), path)
        elif os.path.isabs(target):
            _remove(path, root, removed)
    # Links are judged again after each removal: what one leads through may have gone.
    base = os.path.realpath(root)
    changed = True
    while changed:
        changed = False
        for path in links:
            if os.path.islink(path) and not _within(path, base):
                _remove(path, root, removed)
                changed = True
    return removed


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder as it is: links stay links, times and modes are kept."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def _within(path: str, base: str) -> bool:
    try:
        real = os.path.realpath(path, strict=False)
        os.stat(path)
    except FileNotFoundError:
        pass  # dangling is harmless as long as it points inside
    except OSError:
        return False  # a loop
    return real == base or real.startswith(base + os.sep)


def _remove(path: str, root: Path, removed: list[str]) -> None:
    os.unlink(path)
    removed.append(os.fsencode(os.path.relpath(path, root)).decode(errors="replace"))
