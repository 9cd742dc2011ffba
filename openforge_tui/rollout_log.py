"""What a rollout's harness printed: the end of its log, as text to show. Knows where logs lie."""

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from openforge_tui.transcript import visible

TAIL_BYTES = 64 << 10


def path_of(store_root: Path, rollout: dict[str, Any]) -> Path:
    """The log of a rollout's attempt; it may not be there."""
    path: Path = store_root / "runs" / rollout["run_id"] / "logs" / f"{rollout['rollout_id']}.{rollout['attempt']}.log"
    return path


def render(store_root: Path, rollout: dict[str, Any], *, full: bool) -> RenderableType:
    """The last TAIL_BYTES of it, or all; says what is left out."""
    path = path_of(store_root, rollout)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = 0 if full else max(0, size - TAIL_BYTES)
            file.seek(start)
            text = file.read().decode(errors="replace")
    except OSError as error:
        return Text(f"no log: {path}: {error.strerror}", "dim")
    if not text:
        return Text("the harness printed nothing", "dim")
    head = f"… {start} bytes before; f shows them, openforge logs {rollout['rollout_id']} prints all\n" if start else ""
    return Text(head, "dim").append(visible(text.replace("\r\n", "\n")), "not dim")
