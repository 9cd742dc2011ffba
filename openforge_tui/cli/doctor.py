"""`openforge doctor`: what this machine has, what it lacks, and the next command for each."""

import typer

from openforge_tui.cli import output, settings


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor() -> None:
    """Check this machine and say what to type next; exit code 5 when something that is needed is missing.

    With -o json: a list of {check, state (ok, note, missing), found, next}.
    """
    from openforge.errors import CheckError
    from openforge_tui import machine

    config = settings.current().load().config
    found = machine.findings(machine.survey(config, settings.current().project), config)
    output.emit([vars(finding) for finding in found], ["check", "state", "found", "next"])
    if missing := [finding for finding in found if finding.state == "missing"]:
        raise CheckError(f"missing: {', '.join(finding.check for finding in missing)}", hint=missing[0].next)
    output.say("nothing that is needed is missing; next: openforge demo")
