"""Folders in folders, deeper than a path can say: what an agent may leave behind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nested(folder: Path, name: str, depth: int) -> Iterator[int]:
    """`depth` folders called `name` inside each other; gives a descriptor of the innermost."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    try:
        yield at
    finally:
        os.close(at)
