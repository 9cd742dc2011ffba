"""What a recorder runs on, gathered from this machine: its Python, the libraries that is linked to, the packages.

They are the very files that the recorder as a child process runs on here, so that both are the same program, and
nothing is fetched. A loader of their own makes them run in any image.
"""

import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from openforge.errors import InfraError
from openforge.program import run_program

ROOTS = ("aiohttp", "certifi", "jinja2", "mitmproxy", "orjson", "pydantic", "renderers", "tokenizers")
"""What openforge/ and proxy_addons/ import; the rest is what these require."""

_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "tkinter", "_tkinter*"),
    *("turtledemo", "ensurepip", "lib2to3", "config-*"),
)
_REQUIRED = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)")
_LINKED = re.compile(r"(/\S+)\s+\(0x")
_NAMES = ("libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2")  # opened by name when a host is looked up


@cache
def distributions() -> tuple[metadata.Distribution, ...]:
    """The packages, by name. InfraError when one of the roots is not installed."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    wanted = [(name, "") for name in ROOTS]
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[name] = distribution = _installed(name)
        except StopIteration:
            if name in ROOTS:
                raise InfraError(f"the package {name} is not installed here", hint="./just setup") from None
            continue  # of another platform, or a choice that was not made here
        for line in distribution.requires or ():
            requirement, _, marker = line.partition(";")
            needed = _EXTRA.search(marker)
            if (match := _REQUIRED.match(requirement)) and (needed is None or needed[1] == extra):
                wanted += [(_plain(match[1]), part.strip()) for part in ("", *(match[2] or "").split(","))]
    return tuple(found[name] for name in sorted(found))


def _installed(name: str) -> metadata.Distribution:
    """That of this environment and no other: what is imported may add places to sys.path. StopIteration."""
    places = list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))
    return next(iter(metadata.Distribution.discover(name=name, path=places)))


def versions() -> list[str]:
    """`NAME=VERSION` of the Python and of each package."""
    return [f"python={sys.version.split()[0]}", *(f"{_name(each)}={each.version}" for each in distributions())]


def gather(target: Path) -> None:
    """Put all of it below `target`: `python/` as an installation of its own, `lib/` with the loader. InfraError."""
    home = target / "python" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = target / "python" / "bin" / "python"
    program.parent.mkdir(parents=True)
    shutil.copy2(Path(sys.executable).resolve(), program)
    shutil.copytree(sysconfig.get_path("stdlib"), home, ignore=_LEFT_OUT, symlinks=False)
    for distribution in distributions():
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                place = home / "site-packages" / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
    libraries = target / "lib"
    libraries.mkdir()
    for library in _linked(Path(sys.executable).resolve(), home):
        shutil.copyfile(library, libraries / library.name)
        if library.name.startswith("ld-"):
            shutil.copy2(library, libraries / "loader")


def _linked(program: Path, home: Path) -> Iterator[Path]:
    """The system's libraries that the program and the modules below `home` are linked to."""
    extensions = [str(path) for path in home.rglob("*.so*") if path.is_file()]
    told = run_program(["ldd", str(program), *extensions], step="asking what Python is linked to")
    found = {Path(match[1]) for match in _LINKED.finditer(told)}
    ours = (path for path in found if home not in path.parents)
    folders = {path.parent for path in found if path.name == "libc.so.6"}
    return _unique([*ours, *(folder / name for folder in folders for name in _NAMES if (folder / name).exists())])


def _unique(paths: Iterable[Path]) -> Iterator[Path]:
    return iter({path.name: path for path in paths}.values())


def _name(distribution: metadata.Distribution) -> str:
    return _plain(distribution.metadata["Name"])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
