"""The colours of states, the same on every screen; without colour the words still tell."""

_STYLES = {
    "done": "green",
    "running": "bold cyan",
    "starting": "cyan",
    "grading": "cyan",
    "queued": "dim",
    "failed": "yellow",
    "cancelled": "yellow",
    "interrupted": "red",
    "error": "red",
    "lost": "red",
    "unreadable": "red",
}


def state_style(state: object) -> str:
    return _STYLES.get(str(state), "")
