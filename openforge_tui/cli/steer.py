"""`openforge cancel`, `pause`, `unpause`: end runs or rollouts that go on, or hold runs for a while."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

COLUMNS = ("rollout_id", "state", "reward", "attempt")

_Runs = Annotated[list[str], typer.Argument(help="Run ids, prefixes or `latest`.")]


def register(app: typer.Typer) -> None:
    for command in (cancel, pause, unpause):
        app.command()(command)


def cancel(
    names: Annotated[list[str], typer.Argument(help="Run or rollout ids, prefixes or `latest`.")],
) -> None:
    """End runs or rollouts that go on; what was graded stays.

    A run whose last rollout has ended comes to its own end.
    """
    from openforge_tui.steer import cancel as end

    ended = output.run_async(end(settings.current().load().store_root, names))
    output.emit(ended, COLUMNS)
    if not ended:
        output.say("nothing was going on there")


def pause(runs: _Runs) -> None:
    """Begin no more rollouts of a run, or of a training, until it is unpaused.

    Rollouts that are under way come to their end; a trainer waits for the others with all it has in memory.
    """
    _hold(runs, on=True)


def unpause(runs: _Runs) -> None:
    """Go on with runs that were paused."""
    _hold(runs, on=False)


def _hold(runs: list[str], *, on: bool) -> None:
    from openforge_tui.steer import pause as hold

    output.emit(
        output.run_async(hold(settings.current().load().store_root, runs, on=on)), ("run_id", "state", "running")
    )
