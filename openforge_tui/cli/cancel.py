"""`openforge cancel`: end runs or rollouts that go on."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

COLUMNS = ("rollout_id", "state", "reward", "attempt")


def register(app: typer.Typer) -> None:
    app.command()(cancel)


def cancel(
    names: Annotated[list[str], typer.Argument(help="Run or rollout ids, prefixes or `latest`.")],
) -> None:
    """End runs or rollouts that go on; what was graded stays.

    A run whose last rollout has ended comes to its own end.
    """
    from openforge_tui.cancel import cancel as end

    ended = output.run_async(end(settings.current().load().store_root, names))
    output.emit(ended, COLUMNS)
    if not ended:
        output.say("nothing was going on there")
