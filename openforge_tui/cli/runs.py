"""`openforge runs`: what was run; the store knows the rest."""

from typing import Any

import typer

from openforge_tui.cli import output, settings
from openforge_tui.cli.watch import Watch, watched


def register(app: typer.Typer) -> None:
    app.command()(runs)


def runs(watch: Watch = False) -> None:
    """List runs, the newest first."""
    from openforge.store.lists import list_runs

    store_root = settings.current().load().store_root
    watched(lambda: list_runs(store_root), _show, watch)


def _show(rows: list[dict[str, Any]]) -> None:
    from openforge.store.lists import RUN_COLUMNS

    output.emit(rows, RUN_COLUMNS)
    output.say(
        "next: openforge rollouts latest" if rows else "there are no runs yet; next: openforge demo, or openforge run"
    )
