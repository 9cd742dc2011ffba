"""Files that appear whole under their names or not at all. Does not know what they hold."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from openforge.errors import InfraError, UsageError


@contextmanager
def whole_file(dest: Path) -> Iterator[Path]:
    """A name beside `dest` to write under; renamed when all went well, removed when not. Raises as `writing` does."""
    if dest.is_dir():
        raise UsageError(f"{dest} is a folder", hint="name a file")
    with writing(dest), _beside(dest) as folder:
        temporary = folder / dest.name
        yield temporary
        os.replace(temporary, dest)


@contextmanager
def whole_folder(dest: Path) -> Iterator[Path]:
    """The same for files that belong together: all of them come into `dest`, or none."""
    with writing(dest), _beside(dest) as folder:
        yield folder
        dest.mkdir(exist_ok=True)
        for file in folder.iterdir():
            os.replace(file, dest / file.name)


@contextmanager
def _beside(dest: Path) -> Iterator[Path]:
    """A folder that goes with the block; what was made to put it into goes, too, when the block fails."""
    missing = [folder for folder in dest.parents if not folder.exists()]
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as folder:
            yield Path(folder)
    except BaseException:
        for made in missing:  # the innermost first
            with suppress(OSError):
                made.rmdir()
        raise


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
