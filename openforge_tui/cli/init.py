"""`openforge init`: an openforge.toml in this folder."""

import typer


def register(app: typer.Typer) -> None:
    app.command()(init)


def init() -> None:
    """Write a short, commented openforge.toml here; an existing one is left alone (exit code 2)."""
    from openforge_tui.cli import config

    config.init()
