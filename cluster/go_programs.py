"""Programs built from Go modules, each set of them once: Kubernetes where no registry has it as images.

A set is a folder with a go.mod that pins everything; what it builds is kept in the cache by the hash of that folder.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster.docker import Say
from openforge.cache import building, cache_dir
from openforge.errors import InfraError
from openforge.program import run_program

_GO_S = 3600.0
_STAMP = "k8s.io/component-base/version"


def place(modules: Path) -> Path:
    """Where the programs of a set lie or would lie."""
    return cache_dir() / "node-programs" / content_hash(modules.parent, sorted(modules.rglob("*")))


def ensure(modules: Path, packages: Mapping[str, str], say: Say, *, kubernetes: str = "") -> Path:
    """The folder with every program of `packages` (name to Go package), built if it is not there. InfraError.

    `kubernetes`: the version that its programs are to say they have.
    """
    there = place(modules)
    if there.is_dir():
        return there
    if shutil.which("go") is None:
        raise InfraError("go is not on PATH, and Kubernetes is built from its modules", hint="install Go 1.26 or newer")
    numbers = kubernetes.removeprefix("v").split(".")
    stamps = {"gitVersion": kubernetes, "gitMajor": numbers[0], "gitMinor": numbers[1]} if kubernetes else {}
    stamps |= {"gitTreeState": "clean"} if stamps else {}
    flags = " ".join(["-s -w", *(f"-X {_STAMP}.{name}={value}" for name, value in stamps.items())])
    with building(there) as made:
        for number, (program, package) in enumerate(packages.items(), 1):
            say(f"go build {package} ({number}/{len(packages)})")
            run_program(
                ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(made / program), package],
                step=f"building {program}",
                cwd=modules,
                env={"CGO_ENABLED": "0"},  # static: they run in images that hold nothing else
                timeout_s=_GO_S,
            )
    return there


def content_hash(root: Path, paths: Iterable[Path]) -> str:
    """10 hex characters over the files among `paths`, their names below `root` and whether they can be executed."""
    digest = hashlib.blake2b(digest_size=5)
    for path in paths:
        if path.is_file():
            executable = os.access(path, os.X_OK)
            digest.update(f"{path.relative_to(root)}\0{executable}\0".encode() + path.read_bytes())
    return digest.hexdigest()
