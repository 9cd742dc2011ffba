"""The `openforge` command as a program: streams, exit codes, and ./just itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def openforge(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "openforge_tui", *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, **env})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--version"], 0, ""),
        ([], 0, ""),
        (["confg"], 2, "Did you mean 'config'"),
        (["config", "show", "-o", "yaml"], 2, "there is no such format"),
        (["config", "show", "--set", "run.samples"], 2, "expected KEY=VALUE"),
        (["config", "show", "--set", "run.smples=1"], 2, "samples"),
        (["--nonsense"], 2, "No such option"),
    ],
)
def test_exit_codes_and_streams(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    ended = openforge(*arguments, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert said in " ".join(ended.stderr.split())
    if code:
        assert ended.stdout == "", "stdout is data"


def test_global_options_stand_before_or_after_the_verb(tmp_path: Path) -> None:
    before = openforge("-o", "json", "--set", "run.samples=3", "config", "show", cwd=tmp_path)
    after = openforge("config", "show", "--set", "run.samples=3", "-o", "json", cwd=tmp_path)
    assert before.returncode == 0, before.stderr
    assert before.stdout == after.stdout
    rows = {row["key"]: row["value"] for row in json.loads(after.stdout)}
    assert str(rows["run.samples"]) == "3"


def test_output_has_no_escape_sequences_when_nobody_watches(tmp_path: Path) -> None:
    ended = openforge("config", "show", cwd=tmp_path, FORCE_COLOR="", TERM="xterm-256color")
    assert ended.returncode == 0
    assert "\x1b" not in ended.stdout + ended.stderr


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "openforge_tui", "config", "show", "-o", "jsonl"]
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what ./just needs, with a package list of two so that making it is quick."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("just", "justfile", "pyproject.toml", "README.md", "LICENSE", ".python-version"):
        shutil.copy(ROOT / name, root / name)
    for package in ("openforge", "openforge_tui", "proxy_addons", "cluster", "trainer"):
        (root / package).mkdir()
        (root / package / "__init__.py").write_text('"""A package."""\n')
    (root / "requirements").mkdir()
    keep = [
        line for line in (ROOT / "requirements" / "desk.txt").read_text().splitlines() if line.startswith("rust-just")
    ]
    (root / "requirements" / "desk.txt").write_text("\n".join(keep) + "\n")
    return root


def just(root: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "just", *args], capture_output=True, text=True, timeout=280, cwd="/", env={**os.environ, **env}
    )


@pytest.mark.contract
def test_just_makes_the_environment_once(checkout: Path) -> None:
    first = just(checkout)
    assert first.returncode == 0, first.stderr
    assert "Available recipes" in first.stdout
    stamp = checkout / ".venv" / ".stamp"
    made = stamp.stat().st_mtime_ns
    again = just(checkout, "--list")
    assert (again.returncode, again.stderr) == (0, "")
    assert stamp.stat().st_mtime_ns == made

    stamp.unlink()  # what an interrupted installation leaves
    mended = just(checkout, "--list")
    assert mended.returncode == 0, mended.stderr
    assert stamp.exists()


def test_just_says_what_is_missing_in_one_line(tmp_path: Path) -> None:
    shutil.copy(ROOT / "just", tmp_path / "just")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "desk.txt").write_text("rust-just==1\n")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "cksum", "cat", "rm"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    ended = just(tmp_path, PATH=str(tools), HOME=str(tmp_path), PYENV_ROOT=str(tmp_path))
    assert ended.returncode == 3
    assert ended.stderr.splitlines() == [
        "just: Python 3.12 or 3.13 not found; install one (or uv), or set OPENFORGE_PYTHON to its path"
    ]


_SLOW = """
import sys, time
from openforge_tui.cli import output
def work():
    try:
        print("started", flush=True)
        time.sleep(30)
    finally:
        output.say("cleaned up")
sys.exit(output.run_command(work))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_command_in_good_order(number: signal.Signals, ignored: signal.Signals) -> None:
    """Also where a script started it with `&` (no SIGINT) or nohup (no SIGHUP, which then stays switched off)."""
    ignore = f"import signal; signal.signal({int(ignored)}, signal.SIG_IGN)"
    process = subprocess.Popen(
        [sys.executable, "-c", ignore + _SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(number)
    if number is ignored is signal.SIGHUP:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.split() == ["cleaned", "up", "interrupted"]
