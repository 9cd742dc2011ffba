"""`openforge runs`: what was run; the store knows the rest."""

import typer

from openforge_tui.cli import output, settings


def register(app: typer.Typer) -> None:
    app.command()(runs)


def runs() -> None:
    """List runs, the newest first."""
    from openforge.store.lists import RUN_COLUMNS, list_runs

    rows = list_runs(settings.current().load().store_root)
    output.emit(rows, RUN_COLUMNS)
    output.say(
        "next: openforge rollouts latest" if rows else "there are no runs yet; next: openforge demo, or openforge run"
    )
