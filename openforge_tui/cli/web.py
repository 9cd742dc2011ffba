"""`openforge web`: the app in a browser on this machine."""

import sys
from typing import Annotated

import typer

from openforge_tui.actions import MODES
from openforge_tui.cli import output, settings


def register(app: typer.Typer) -> None:
    app.command()(web)


def web(
    mode: Annotated[
        str, typer.Argument(help=f"Where to begin: {', '.join(mode.noun for mode in MODES)}.")
    ] = "overview",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (default: 8021, or a free one).")] = None,
    readonly: Annotated[bool, typer.Option("--readonly", help="Look only: whatever changes something is off.")] = False,
) -> None:
    """Serve the app on 127.0.0.1 until Ctrl-C and print its address, with the token that opens it.

    Each browser tab is an app of its own, which ends with it; work that was started goes on. From another machine:
    `ssh -L 8021:127.0.0.1:8021 HOST`, then the same address there.
    """
    from openforge_tui.cli.desk import check_mode
    from openforge_tui.web import serve

    check_mode(mode)
    typed = settings.current()
    typed.load()  # what is wrong with the configuration is told here, not in every tab
    looks_only = ["--readonly"] if readonly or typed.readonly else []
    argv = [sys.executable, "-m", "openforge_tui", "app", mode, *typed.words(), *looks_only]

    def listening(url: str) -> None:
        if (typed.output or "table") == "table":
            output.emit([{"url": url}], fmt="name")
        else:
            output.emit_object({"url": url})
        output.say("the app, for this machine alone; whoever has the address may use it; Ctrl-C ends it and every tab")

    output.run_async(serve(argv, port=port, listening=listening, say=output.say))
