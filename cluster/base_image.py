"""The Debian that our images stand on: from a registry where one answers, else made from Debian's packages.

Both are Debian 12 without recommended packages. Which one it was is a label, and so part of what `images ls` shows.
"""

import os
import shutil
import tempfile
from pathlib import Path

from cluster import docker
from openforge.errors import InfraError
from openforge.program import run_program

NAME = "openforge/base:bookworm"
_PULLED = "debian:12-slim"
_BOOTSTRAP_S = 900.0


def ensure_base(say: docker.Say) -> str:
    """The name of the base image, made if it is not there. InfraError."""
    if docker.image(NAME) is not None:
        return NAME
    if docker.can_pull(_PULLED, say):
        docker.docker("tag", _PULLED, NAME, step="naming the base image")
        return NAME
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise InfraError(
            f"no registry gives {_PULLED}, and to make it here takes root and debootstrap",
            hint="apt-get install debootstrap, and run this as root; or: docker load < an image, then docker tag it "
            f"{NAME}",
        )
    with tempfile.TemporaryDirectory(prefix="openforge-base-") as folder:
        root = Path(folder, "root")
        say(f"debootstrap --variant=minbase bookworm {root}")
        run_program(
            ["debootstrap", "--variant=minbase", "bookworm", str(root), _mirror()],
            step="making a Debian from its packages",
            timeout_s=_BOOTSTRAP_S,
        )
        archive = Path(folder, "base.tar")
        run_program(["tar", "-C", str(root), "-cf", str(archive), "."], step="packing the base image")
        docker.docker(
            *("import", "--change", f"LABEL {docker.OWNED}=base", str(archive), NAME),
            step="importing the base image",
            timeout_s=_BOOTSTRAP_S,
        )
    return NAME


def _mirror() -> str:
    """Where this machine's own apt looks for Debian's packages; a mirror that answers here."""
    for file in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        for line in Path(file).read_text().splitlines() if Path(file).is_file() else ():
            words = line.split()
            if words and words[0] == "URIs:":
                return words[1]
            if words and words[0] == "deb":
                return next((word for word in words[1:] if "://" in word), "")
    return ""
