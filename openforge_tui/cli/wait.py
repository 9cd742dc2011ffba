"""`openforge wait`: for scripts, until a run or a rollout has come to a state. Reads the journal; asks nobody."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from openforge.errors import CheckError, TimeLimitError, UsageError
from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from pathlib import Path

_POLL_S = 0.25
_GOING_ON = ("queued", "starting", "running", "grading", "paused")


def register(app: typer.Typer) -> None:
    app.command()(wait)


def wait(
    name: Annotated[str, typer.Argument(help="A run or rollout id, a prefix or `latest`.")] = "latest",
    for_: Annotated[str, typer.Option("--for", metavar="STATE", help="`ended`, or a state: running, done …")] = "ended",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds.")] = 3600,
) -> None:
    """Wait until a run or a rollout has come to a state.

    Exit code 0 when it has, 4 when the time was up first, 5 when it ended in another state.
    """
    from openforge.store.connect import find_run
    from openforge.store.transcript import find_rollout

    store_root = settings.current().load().store_root
    if for_ not in ("ended", *_GOING_ON, "done", "failed", "error", "cancelled", "lost", "interrupted"):
        raise UsageError(
            f"--for {for_}: there is no such state", hint="ended, running, done, failed, error, cancelled …"
        )
    run_id, rollout_id = find_rollout(store_root, name) if "." in name else (find_run(store_root, name), "")
    end = time.monotonic() + timeout
    look = _Look(store_root, run_id, rollout_id)
    while True:
        state = look.state()
        if state == for_ or (for_ == "ended" and state not in _GOING_ON):
            output.emit_object({"id": rollout_id or run_id, "state": state})
            return
        if state not in _GOING_ON:
            raise CheckError(f"{rollout_id or run_id} ended as {state}, not {for_}", hint=f"openforge logs {name}")
        if time.monotonic() >= end:
            raise TimeLimitError(f"{rollout_id or run_id} is {state} after {timeout:g} s", hint="openforge status")
        time.sleep(_POLL_S)


class _Look:
    """How a run or a rollout stands, from its new records alone."""

    def __init__(self, store_root: "Path", run_id: str, rollout_id: str) -> None:
        from openforge_tui.reader import Followed

        self._followed = Followed(store_root / "runs" / run_id)
        self._rollout_id = rollout_id

    def state(self) -> str:
        followed = self._followed.look()
        if not self._rollout_id:
            row = followed.fold.run_row(followed.live)
            return str(row["state"]) if row else "queued"
        rows = {row["rollout_id"]: row["state"] for row in followed.rollout_rows()}
        return str(rows.get(self._rollout_id, "queued"))
