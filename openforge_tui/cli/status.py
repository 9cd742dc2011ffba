"""`openforge status`: the runs that are going on now, their rollouts and the model calls in flight."""

from typing import Any

import typer

from openforge_tui.cli import output, settings

COLUMNS = ("run", "state", "queued", "running", "done", "failed", "error", "calls", "oldest_call_s", "sandbox", "pid")


def register(app: typer.Typer) -> None:
    app.command()(status)


def status() -> None:
    """What is running now."""
    from openforge_tui.live_status import ask_all

    rows = [_row(told) for told in output.run_async(ask_all(settings.current().load().store_root))]
    output.emit(rows, COLUMNS)
    if not rows:
        output.say("nothing is running; next: openforge run, or openforge runs for what has ended")


def _row(told: dict[str, Any]) -> dict[str, object]:
    states, calls = told["rollouts"], told["calls"]
    running = sum(int(states.get(state, 0)) for state in ("starting", "running", "grading"))
    return {
        "run": told["run_id"],
        "state": told.get("state"),
        "queued": states.get("queued", 0),
        "running": running,
        "done": states.get("done", 0),
        "failed": states.get("failed", 0),
        "error": states.get("error", 0),
        "calls": len(calls),
        "oldest_call_s": max((call["age_s"] for call in calls), default=None),
        "sandbox": told["isolation"],
        "pid": told["pid"],
    }
