"""What every test may use, and the one thing none may do: reach beyond this machine.

Contract tests start real programs; those are kept on this machine by their own sandboxes. This guard is for code that
runs inside the test process.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cluster import docker, kind
from openforge import cache
from trainer.starter.base import qwen3_tokenizer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_LOCAL = ("127.", "::1", "0.0.0.0", "localhost")
_connect = socket.socket.connect


def _guarded_connect(self: socket.socket, address: Any) -> None:
    host = address[0] if isinstance(address, tuple) else ""
    if self.family in (socket.AF_INET, socket.AF_INET6) and not str(host).startswith(_LOCAL):
        raise RuntimeError(f"a test tried to reach {address}: tests stay on this machine")
    _connect(self, address)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the policy comes first: it takes longest, and a worker that began with it late would end last."""
    items.sort(key=lambda item: item.get_closest_marker("policy") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_skip_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_skip_in_ci((yield))


def _no_skip_in_ci[R: (pytest.TestReport, pytest.CollectReport)](report: R) -> R:
    """CI installs what its machine can run, so a skip there is something that broke without a word."""
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _guarded_connect)


@pytest.fixture(autouse=True)
def _no_settings_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own OPENFORGE_… variables (but the cache) must not decide whether a test passes."""
    for name in [n for n in os.environ if n.startswith("OPENFORGE_") and n != "OPENFORGE_CACHE"]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A real Chromium. Its loop runs as long as it is open, so that a file that uses it has no async tests."""
    if (path := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium on PATH (Debian's package of that name)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def kind_cluster() -> kind.Cluster:
    """A real kind cluster. It stays up for the next session; .ci/run removes it when all tests have ended."""
    if problem := docker.problem():
        pytest.skip(f"no containers here: {problem}")
    return kind.up("openforge-test", print)


@pytest.fixture
def cluster(kind_cluster: kind.Cluster, cache_dir: Path) -> Iterator[kind.Cluster]:
    """The cluster for one test alone: some take parts of it away."""
    with (cache_dir / "kind" / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield kind_cluster


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The shared cache: harnesses, tokenizers, policies. Tests read it; what they make goes to tmp_path."""
    return cache.cache_dir()


@pytest.fixture(scope="session")
def qwen3_dir() -> Path:
    """A folder with Qwen3's whole tokenizer and chat template (made by the starter's own code when it is missing)."""
    return qwen3_tokenizer()


@pytest.fixture(scope="session")
def starter_dir() -> Path:
    """The starter policy's folder, when it was made on this machine."""
    from openforge_tui import policies, train_set

    if missing := train_set.missing():
        pytest.skip(f"{', '.join(missing)} not installed: ./just train-set")
    if (found := policies.find("starter")) is None:
        pytest.skip("the starter policy is not made: openforge policy make starter")
    return Path(found)


@pytest.fixture(scope="session")
def starter_server(starter_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one vLLM with the starter, for the whole session; whatever needs it adopts it."""
    log = tmp_path_factory.mktemp("server") / "serve.log"
    argv = [sys.executable, "-m", "openforge_tui", "policy", "serve", "starter", "-o", "json"]
    with log.open("wb") as narration:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=narration, cwd=log.parent, text=True)
    try:
        assert process.stdout is not None
        told = ""
        while not told.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, f"the policy server did not start: {log.read_text()[-2000:]}"
            told += line
        yield str(json.loads(told)["url"])
    finally:
        process.terminate()
        process.wait(timeout=60)


class DemoRun(NamedTuple):
    """What one whole demo left: where, which run, and what it printed."""

    store_root: Path
    run_id: str
    answer: dict[str, Any]
    narration: str


@pytest.fixture(scope="session")
def demo_run(starter_server: str, tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The demo itself, once: twelve tasks by three harnesses through vLLM."""
    folder = tmp_path_factory.mktemp("demo")
    argv = [
        sys.executable,
        "-m",
        "openforge_tui",
        "demo",
        "--samples",
        "1",
        "--store",
        str(folder / "store"),
        "-o",
        "json",
    ]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=folder)
    assert ended.returncode == 0, ended.stderr[-4000:]
    answer = json.loads(ended.stdout)
    return DemoRun(folder / "store", answer["run_id"], answer, ended.stderr)


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    """An empty store of its own."""
    root = tmp_path / "store"
    (root / "runs").mkdir(parents=True)
    return root
