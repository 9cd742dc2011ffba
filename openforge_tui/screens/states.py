"""The colours of states, the same on every screen; without colour the words still tell."""

_STYLES = {
    "done": "green",
    "running": "bold cyan",
    "paused": "bold magenta",
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

GOING_ON = ("running", "paused")  # of a run


def state_style(state: object) -> str:
    return _STYLES.get(str(state), "")
