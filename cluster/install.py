"""Brings a harness onto this machine, once, as its manifest says; the same manifest builds its image elsewhere.

Everything lands in the cache folder (`OPENFORGE_CACHE`, else the platform's): `node/<version>/` and
`harness/<name>-<version>/`. A folder gets its final name only after the harness has printed the pinned version,
so a folder that exists is a harness that works. Node 24 stands first on PATH while npm runs: with an older node npm
installs older packages without a word.
"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openforge.cache import cache_dir, locked
from openforge.errors import InfraError, UsageError
from openforge.harness import HarnessManifest
from openforge.program import run_program

Say = Callable[[str], None]
_NPM_S = 900.0
_CHECK_S = 60.0


@dataclass(frozen=True)
class Installed:
    """Where one harness lies on this machine. `bin` is relative to `root`; `node` is a node folder, or None."""

    root: Path
    bin: str
    node: Path | None


def harness_dir(manifest: HarnessManifest) -> Path:
    """Where the harness lies or would lie."""
    if manifest.spec.install.kind == "none":
        return manifest.root
    return cache_dir() / "harness" / f"{manifest.name}-{manifest.version}"


def is_installed(manifest: HarnessManifest) -> bool:
    return harness_dir(manifest).is_dir()


def install(manifest: HarnessManifest, say: Say = lambda text: None) -> Installed:
    """Install if needed and return where it is. Two callers at once: one works, the other waits for it."""
    spec = manifest.spec.install
    target = harness_dir(manifest)
    if spec.kind == "none":
        return Installed(target, "", None)
    node = _install_node(spec.node, say) if spec.node else None
    if not target.is_dir():
        with locked(target.parent / f".{target.name}.lock"), _staging(target) as stage:
            if not target.is_dir():
                say(f"installing {manifest.name} {manifest.version} ({spec.kind}) into {target}")
                (_npm if spec.kind == "npm" else _pip)(stage, spec.packages, node)
                _verify(manifest, stage, node)
                stage.rename(target)
                say(f"{manifest.name} {manifest.version} is ready")
    return Installed(target, _bin(manifest), node)


def _bin(manifest: HarnessManifest) -> str:
    return f"node_modules/.bin/{manifest.spec.install.bin}" if manifest.spec.install.kind == "npm" else ""


def _npm(stage: Path, packages: tuple[str, ...], node: Path | None) -> None:
    npm = _npm_command()
    argv = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(stage), *packages]
    run_program(argv, step=f"installing {' '.join(packages)}", timeout_s=_NPM_S, env=_env(node))


def _pip(stage: Path, packages: tuple[str, ...], node: Path | None) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--target", str(stage / "site"), *packages]
    run_program(argv, step=f"installing {' '.join(packages)}", timeout_s=_NPM_S)


def _verify(manifest: HarnessManifest, stage: Path, node: Path | None) -> None:
    spec = manifest.spec.install
    if not spec.bin:
        return
    command = [str(stage / _bin(manifest)), *spec.check]
    with tempfile.TemporaryDirectory(prefix="openforge-check-") as home:
        output = run_program(
            command,
            step=f"checking {manifest.name}",
            timeout_s=_CHECK_S,
            env={**_env(node), "HOME": home},
            cwd=Path(home),
        )
    if manifest.version not in output:
        raise InfraError(
            f"{manifest.name}: asked for {manifest.version}, but {spec.bin} says {output.strip()[:200]!r}",
            hint="the package registry gave another version; check `packages` in its harness.toml",
        )


def _install_node(version: str, say: Say) -> Path:
    """The folder that holds `bin/node`, from npm's own package of node."""
    machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise UsageError(
            f"harnesses are installed on Linux only, not on {sys.platform}/{platform.machine()}",
            hint="run rollouts in a container there",
        )
    package = f"node-linux-{machine}"
    target = cache_dir() / "node" / version
    if not target.is_dir():
        with locked(target.parent / f".{target.name}.lock"), _staging(target) as stage:
            if not target.is_dir():
                say(f"fetching node {version} from npm into {target}")
                npm = _npm_command()
                argv = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
                argv += ["--prefix", str(stage)]
                run_program([*argv, f"{package}@{version}"], step=f"fetching node {version}", timeout_s=_NPM_S)
                node = str(stage / "node_modules" / package / "bin" / "node")
                printed = run_program([node, "--version"], step="checking node", timeout_s=_CHECK_S)
                if not printed.startswith(f"v{version}"):
                    raise InfraError(f"npm gave node {printed.strip()}, not {version}")
                stage.rename(target)
    return target / "node_modules" / package


def _npm_command() -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise InfraError(
            "npm is not on PATH, and this harness comes from npm",
            hint="install it, e.g. `apt-get install npm`, and try again",
        )
    return npm


def _env(node: Path | None) -> dict[str, str]:
    return {"PATH": f"{node / 'bin'}:{os.environ.get('PATH', os.defpath)}"} if node else {}


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A folder beside the target. What an installer that was killed left behind is removed: the lock is held here."""
    stage = target.parent / f".{target.name}.partial"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
