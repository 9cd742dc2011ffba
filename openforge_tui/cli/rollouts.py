"""`openforge rollouts`: what became of each rollout of a run. The store knows the rest."""

from typing import Annotated, Any

import typer

from openforge_tui.cli import output, settings
from openforge_tui.cli.watch import Watch, watched

_HEADERS = {"error_class": "error", "prompt_tokens": "tokens in", "completion_tokens": "sampled"}
_THERE = """
    SELECT list_sort(list(DISTINCT state)) AS states, list_sort(list(DISTINCT task)) AS tasks,
        list_sort(list(DISTINCT harness)) AS harnesses
    FROM rollouts HAVING count(*) > 0"""


def register(app: typer.Typer) -> None:
    app.command()(rollouts)


def rollouts(
    run: Annotated[str, typer.Argument(help="A run id, a prefix or `latest`.")] = "latest",
    failed: Annotated[
        bool, typer.Option("--failed", help="Only what did not end as done with a reward above 0.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    harness: Annotated[str | None, typer.Option(help="Only this harness.")] = None,
    state: Annotated[str | None, typer.Option(help="Only this state: done, failed, error, running, lost …")] = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="TEXT, !TEXT, -f LETTERS, or -l COLUMN=VALUE,COLUMN<VALUE.")
    ] = None,
    watch: Watch = False,
) -> None:
    """List the rollouts of a run."""
    from openforge.filter import parse_filter
    from openforge.store.connect import find_run, query
    from openforge.store.lists import ROLLOUT_COLUMNS, list_rollouts

    store_root = settings.current().load().store_root
    run_id = find_run(store_root, run)
    wanted = {"task": task, "harness": harness, "state": state}
    chosen = {name: value for name, value in wanted.items() if value is not None}
    matches = parse_filter(filter_ or "")

    def ask() -> list[dict[str, Any]]:
        return [row for row in list_rollouts(store_root, run_id, chosen, failed=failed) if matches(row)]

    def show(rows: list[dict[str, Any]]) -> None:
        output.emit(rows, ROLLOUT_COLUMNS, headers=_HEADERS)
        if rows:
            output.say(f"next: openforge show {rows[0]['rollout_id']}")
        elif chosen or failed or filter_:
            (there,) = query(store_root, _THERE, runs=[run_id]) or ({},)
            output.say(
                "; ".join(["nothing matches", *(f"{name} are {', '.join(all_)}" for name, all_ in there.items())])
            )

    watched(ask, show, watch)
