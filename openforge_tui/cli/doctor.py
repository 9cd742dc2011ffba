"""`openforge doctor`: what this machine has, what it lacks, and the next command for each."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from openforge.config import Loaded


COLUMNS = ("check", "state", "found", "next")


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    everything: Annotated[
        bool, typer.Option("--all", help="Also every harness, clusters, images, policies, runs under way and disk.")
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Print the commands that mend what was found, one a line; runs none.")
    ] = False,
) -> None:
    """Check this machine and say what to type next; exit code 5 when something that is needed is missing.

    With -o json: a list of {check, state (ok, note, missing), found, next}; of --all {part, name, state, found, next}.
    """
    from openforge.errors import CheckError
    from openforge_tui import machine

    if everything:
        return _all()

    config = settings.current().load().config
    found = machine.findings(machine.survey(config, settings.current().project), config)
    if fix:
        commands = [{"next": finding.next} for finding in found if finding.state != "ok" and finding.next]
        output.emit(commands, ["next"], None if settings.current().output else "name")
    else:
        output.emit([vars(finding) for finding in found], COLUMNS)
    if missing := [finding for finding in found if finding.state == "missing"]:
        raise CheckError(f"missing: {', '.join(finding.check for finding in missing)}", hint=missing[0].next)
    output.say("nothing that is needed is missing; next: openforge demo")


def _all() -> None:
    """What the app's overview shows."""
    from openforge.errors import CheckError
    from openforge_tui.overview import COLUMNS, PARTS, asked

    typed = settings.current()

    def load(target: str | None) -> "Loaded":
        return replace(typed, target=target or typed.target).load()

    rows = [row for part in PARTS for row in asked(part, load)]
    output.emit(rows, COLUMNS)
    if missing := [row for row in rows if row["state"] == "missing"]:
        raise CheckError(f"missing: {', '.join(row['name'] for row in missing)}", hint=missing[0]["next"])
