"""Where harnesses, tokenizers and made policies live: `OPENFORGE_CACHE`, else `openforge` in the user's cache folder.

A folder appears in the cache whole or not at all: it is built beside its place and then renamed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("OPENFORGE_CACHE") or Path(base, "openforge")).expanduser().resolve()


def policies_dir() -> Path:
    return cache_dir() / "policies"


@contextmanager
def building(place: Path) -> Iterator[Path]:
    """An empty folder to build in; it becomes `place` when the block ends well and goes away when it does not.

    When another process was faster, its result stays: both were made from the same inputs.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    build = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield build
        build.chmod(0o755)
        try:
            build.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(build, ignore_errors=True)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One at a time between processes: whoever comes second waits, and finds done what the first did.

    The kernel releases it when the process ends, however it ends.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
