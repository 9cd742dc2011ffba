"""Arrows between folders point one way, and the command stays light."""

import subprocess
import sys
from pathlib import Path

from openforge_tui.cli.app import VERBS

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "textual",
    "textual_image",
    "PIL",
    "kubernetes",
    "duckdb",
    "pyarrow",
    "torch",
    "mitmproxy",
    "transformers",
    "vllm",
    "verl",
    "aiohttp",
    "renderers",
)
TRAIN_SET = ("torch", "vllm", "verl", "transformers", "ray", "tensordict", "triton")

_LOADED = """
import sys
from openforge_tui.cli.app import main
codes = [main(["--help"]), *(main([verb, "--help"]) for verb in sys.argv[1:])]
sys.stdout = sys.stderr
print("LOADED " + " ".join(sorted({name.partition(".")[0] for name in sys.modules})))
raise SystemExit(max(codes))
"""
_WITHOUT_TRAIN_SET = f"""
import importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {TRAIN_SET!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import openforge, proxy_addons, cluster, openforge_tui
for package in (openforge, proxy_addons, cluster, openforge_tui):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            __import__(found.name)
            print(found.name)
"""


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_help_loads_nothing_heavy() -> None:
    ended = run_python(_LOADED, *VERBS)
    assert ended.returncode == 0, ended.stderr
    loaded = ended.stderr.split("LOADED ")[1].split()
    assert not set(HEAVY) & set(loaded)


def test_help_answers_within_a_second_of_cpu() -> None:
    before_s = _children_cpu_s()
    assert run_python(_LOADED).returncode == 0
    assert _children_cpu_s() - before_s < 1.0


def test_every_desk_module_imports_without_the_train_set() -> None:
    ended = run_python(_WITHOUT_TRAIN_SET)
    assert ended.returncode == 0, ended.stderr
    assert "openforge_tui.cli.app" in ended.stdout.split()


def test_arrows_between_folders() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([lint, "--no-cache"], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout


def _children_cpu_s() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
