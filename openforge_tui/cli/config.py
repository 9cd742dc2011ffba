"""`openforge config show|validate|schema|init`. Knows nothing about merging or TOML."""

import typer

from openforge_tui.cli import output, settings


def register(app: typer.Typer) -> None:
    config = typer.Typer(no_args_is_help=True)
    app.add_typer(config, name="config", help="Show, check and describe the configuration.")
    for command in (show, validate, schema, init):
        config.command()(command)


def show() -> None:
    """Print every value and where it came from."""
    from openforge.config import render

    found = [row._asdict() for row in render.rows(settings.current().load())]
    output.emit(found, ["key", "value", "source"])


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
