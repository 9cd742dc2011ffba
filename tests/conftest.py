"""What every test may use, and the one thing none may do: reach beyond this machine.

Contract tests start real programs; those are kept on this machine by their own sandboxes. This guard is for code that
runs inside the test process.
"""

import os
import socket
from pathlib import Path
from typing import Any

import platformdirs
import pytest

_LOCAL = ("127.", "::1", "0.0.0.0", "localhost")
_connect = socket.socket.connect


def _guarded_connect(self: socket.socket, address: Any) -> None:
    host = address[0] if isinstance(address, tuple) else ""
    if self.family in (socket.AF_INET, socket.AF_INET6) and not str(host).startswith(_LOCAL):
        raise RuntimeError(f"a test tried to reach {address}: tests stay on this machine")
    _connect(self, address)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file share a worker, and so do all that use the policy: one vLLM fills a small machine."""
    for item in items:
        group = "policy" if item.get_closest_marker("policy") else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _guarded_connect)


@pytest.fixture(autouse=True)
def _no_settings_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own OPENFORGE_… variables (but the cache) must not decide whether a test passes."""
    for name in [n for n in os.environ if n.startswith("OPENFORGE_") and n != "OPENFORGE_CACHE"]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """The shared cache: harnesses, tokenizers, policies. Tests read it; what they make goes to tmp_path."""
    return Path(os.environ.get("OPENFORGE_CACHE") or platformdirs.user_cache_dir("openforge"))


@pytest.fixture(scope="session")
def qwen3_dir(cache_dir: Path) -> Path:
    """A folder with Qwen3's whole tokenizer and chat template (made by the starter's own code when it is missing)."""
    folder = cache_dir / "tokenizers" / "qwen3"
    if not folder.is_dir():
        base = pytest.importorskip("trainer.starter.base", reason="the starter's tokenizer is not built yet")
        return Path(base.qwen3_tokenizer())
    return folder


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    """An empty store of its own."""
    root = tmp_path / "store"
    (root / "runs").mkdir(parents=True)
    return root
