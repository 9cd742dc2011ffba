"""`openforge config show|diff|validate|schema|init`. Knows nothing about merging or TOML."""

from dataclasses import replace
from typing import Annotated

import typer

from openforge_tui.cli import output, settings


def register(app: typer.Typer) -> None:
    config = typer.Typer(no_args_is_help=True)
    app.add_typer(config, name="config", help="Show, check and describe the configuration.")
    for command in (show, diff, validate, schema, init):
        config.command()(command)


def show() -> None:
    """Print every value and where it came from."""
    from openforge.config import render

    found = [row._asdict() for row in render.rows(settings.current().load())]
    output.emit(found, ["key", "value", "source"])


def diff(
    other: Annotated[str, typer.Argument(metavar="TARGET", help="A target, as openforge.toml names it.")],
    from_target: Annotated[str | None, typer.Option("--from", help="Compared with (default: the chosen one).")] = None,
) -> None:
    """Print what a target changes: each key with both values and where they come from.

    What is missing to run there is said on stderr; nothing is applied.
    """
    from openforge.config.diff import diff as differing
    from openforge_tui.promote import TODAY, lacking

    typed = settings.current()
    here = replace(typed, target=from_target or typed.target).load()
    there = replace(typed, target=other).load()
    names = {"here": here.config.target.name, "there": there.config.target.name}
    rows = [change._asdict() for change in differing(here, there)]
    output.emit(rows, ["key", "here", "there", "set_here", "set_there"], headers=names)
    for finding in lacking(there):
        after = f"\n  next: {finding.next}" if finding.next else ""
        output.say(f"{finding.state} {finding.check}: {finding.found}{after}")
    output.say(TODAY)


def validate() -> None:
    """Check the configuration in force here; exit code 2 when something is wrong."""
    loaded = settings.current().load()
    changed = sorted({source for source in loaded.sources.values() if source != "default"})
    output.emit_object({"valid": True, "target": loaded.config.target.name, "set_by": changed})


def schema() -> None:
    """Print the JSON Schema of openforge.toml."""
    from openforge.config import render

    output.emit_object(render.schema(), "json")


def init() -> None:
    """Write a short commented openforge.toml here; never overwrites one."""
    from openforge.config import render
    from openforge.config.load import FILE_NAME
    from openforge.errors import UsageError

    path = settings.current().project / FILE_NAME
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(render.first_file())
    except FileExistsError:
        raise UsageError(f"{path} already exists", hint="openforge config show") from None
    output.emit_object({"written": str(path)})
    output.say("next: openforge doctor")
