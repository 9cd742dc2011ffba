"""Docker through its command: is it there, which images has it, build one. The command is what people can type again.

Every image of ours is named by what went into it, so that a name that is there never needs to be made anew.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from openforge.errors import InfraError
from openforge.program import run_program
from openforge.program_log import note_program

Say = Callable[[str], None]
OWNED = "dev.openforge.image"
"""Label of every image that was made here; its value says which kind."""

_ANSWER_S, _QUICK_S, _BUILD_S, _PULL_S = 15.0, 60.0, 1800.0, 600.0


def problem() -> str:
    """Why no container can be started here; empty when one can."""
    if shutil.which("docker") is None:
        return "docker is not on PATH"
    try:
        run_program(["docker", "version", "--format", "{{.Server.Version}}"], step="asking docker", timeout_s=_ANSWER_S)
    except InfraError as error:
        return error.summary.splitlines()[-1]
    return ""


def require() -> None:
    """InfraError when docker does not answer."""
    if why := problem():
        raise InfraError(
            f"docker does not answer: {why}", hint="start Docker and try again; openforge doctor --target kind"
        )


def docker(*arguments: str, step: str, timeout_s: float = _QUICK_S, on_line: Say = lambda line: None) -> str:
    """Run one docker command; its output. InfraError."""
    return run_program(["docker", *arguments], step=step, timeout_s=timeout_s, on_line=on_line)


def image(name: str) -> dict[str, Any] | None:
    """What docker says of an image that is there."""
    # not run_program: that an image is missing is an answer
    argv = ["docker", "image", "inspect", name]
    note_program(argv)
    asked = subprocess.run(argv, capture_output=True, timeout=_QUICK_S, check=False)
    found: list[dict[str, Any]] = json.loads(asked.stdout or "[]")
    return found[0] if asked.returncode == 0 and found else None


def can_pull(name: str, say: Say) -> bool:
    """Fetch an image from its registry. False where no registry answers, or none has it."""
    say(f"docker pull {name}")
    try:
        docker("pull", "--quiet", name, step=f"pulling {name}", timeout_s=_PULL_S)
    except InfraError as error:
        say(f"not to be had from a registry: {error.summary.splitlines()[-1][:200]}")
        return False
    return True


def build(
    name: str,
    context: Path,
    *,
    kind: str,
    say: Say,
    dockerfile: Path | None = None,
    arguments: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Build `context` into `name`, with BuildKit where there is one. InfraError with the end of the build's output.

    The host's network serves the build: it fetches packages, and on some machines containers have no way out.
    """
    told = ["build", "--network", "host", "--tag", name, "--label", f"{OWNED}={kind}"]
    if dockerfile is not None:
        told += ["--file", str(dockerfile)]
    for key, value in (arguments or {}).items():
        told += ["--build-arg", f"{key}={value}"]
    for key, value in (labels or {}).items():
        told += ["--label", f"{key}={value}"]
    buildkit = "1" if _has_buildkit() else "0"
    say(f"docker build --tag {name} {context}")
    run_program(
        ["docker", *told, str(context)], step=f"building {name}", timeout_s=_BUILD_S, env={"DOCKER_BUILDKIT": buildkit}
    )


def _has_buildkit() -> bool:
    asked = subprocess.run(["docker", "buildx", "version"], capture_output=True, timeout=_QUICK_S, check=False)
    return asked.returncode == 0
