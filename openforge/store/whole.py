"""A file that appears whole under its name or not at all. Does not know what it holds."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from openforge.errors import InfraError, UsageError


@contextmanager
def whole_file(dest: Path) -> Iterator[Path]:
    """A name beside `dest` to write under; renamed when all went well, removed when not. Raises as `writing` does."""
    if dest.is_dir():
        raise UsageError(f"{dest} is a folder", hint="name a file")
    with writing(dest):
        dest.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as folder:
            temporary = Path(folder) / dest.name
            yield temporary
            os.replace(temporary, dest)


@contextmanager
def writing(dest: Path) -> Iterator[None]:
    """InfraError for what goes wrong with `dest` itself, which is no reason to read the store again."""
    try:
        yield
    except (OSError, duckdb.IOException) as error:
        ours = isinstance(error, OSError) or f"{dest.parent / f'.{dest.name}'}." in str(error)
        if not ours:
            raise
        number = error.errno if isinstance(error, OSError) else None
        why = os.strerror(number) if number else str(error).splitlines()[0]
        raise InfraError(f"{dest} cannot be written: {why}", hint="free some space, or --to another place") from error
