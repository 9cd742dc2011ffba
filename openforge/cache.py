"""Where harnesses, tokenizers and made policies live: `OPENFORGE_CACHE`, else `openforge` in the user's cache folder.

A folder appears in the cache whole or not at all: it is built beside its place and then renamed.
"""

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
