"""`openforge status`: the runs that are going on now, their rollouts and the model calls in flight."""

import typer

from openforge_tui.cli import output, settings

COLUMNS = ("run", "queued", "running", "done", "failed", "error", "calls", "oldest_call_s", "sandbox", "pid")


def register(app: typer.Typer) -> None:
    app.command()(status)


def status() -> None:
    """What is running now."""
    rows = output.run_async(_ask_all())
    output.emit(rows, COLUMNS)
    if not rows:
        output.say("nothing is running; next: openforge run, or openforge runs for what has ended")


async def _ask_all() -> list[dict[str, object]]:
    import json

    import aiohttp

    store_root = settings.current().load().store_root
    rows: list[dict[str, object]] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
        for file in sorted(store_root.glob("runs/*/orchestrator.json")):
            try:
                face = json.loads(file.read_text())
                headers = {"Authorization": f"Bearer {face['token']}"}
                async with http.get(f"{face['url']}/status", headers=headers) as response:
                    rows.append(_row(await response.json(), face["pid"]))
            except (OSError, ValueError, KeyError, TimeoutError, aiohttp.ClientError):
                continue  # it ended without cleaning up; `openforge runs` shows it as broken off
    return rows


def _row(told: dict[str, object], pid: int) -> dict[str, object]:
    states, calls = told["rollouts"], told["calls"]
    assert isinstance(states, dict)
    assert isinstance(calls, list)
    running = sum(int(states.get(state, 0)) for state in ("starting", "running", "grading"))
    return {
        "run": told["run_id"],
        "queued": states.get("queued", 0),
        "running": running,
        "done": states.get("done", 0),
        "failed": states.get("failed", 0),
        "error": states.get("error", 0),
        "calls": len(calls),
        "oldest_call_s": max((call["age_s"] for call in calls), default=None),
        "sandbox": told["isolation"],
        "pid": pid,
    }
