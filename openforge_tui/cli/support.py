"""`openforge support-bundle`: what a bug report needs, as one file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from openforge_tui.cli import output, settings


def register(app: typer.Typer) -> None:
    app.command("support-bundle")(bundle)


def bundle(
    to: Annotated[Path | None, typer.Option(help="Where to (default: openforge-support-TIME.tar.gz, here).")] = None,
) -> None:
    """Write versions, configuration, doctor's findings, runs and the ends of logs to one file, secrets hidden.

    No model text is in it: not the journal, not what harnesses printed. Look into it before you send it.
    """
    from openforge_tui.support import write_bundle

    dest = to or Path(time.strftime("openforge-support-%Y%m%d-%H%M%S.tar.gz"))
    parts = write_bundle(settings.current().load(), dest)
    output.emit([{"file": str(dest), "part": part} for part in parts], ["file", "part"])
    output.say(f"next: tar tzf {dest}")
