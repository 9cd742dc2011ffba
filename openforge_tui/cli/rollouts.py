"""`openforge rollouts`: what became of each rollout of a run. The store knows the rest."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

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
    rows = [row for row in list_rollouts(store_root, run_id, chosen, failed=failed) if matches(row)]
    output.emit(rows, ROLLOUT_COLUMNS, headers=_HEADERS)
    if rows:
        output.say(f"next: openforge show {rows[0]['rollout_id']}")
    elif chosen or failed or filter_:
        there = [
            f"{name} are {', '.join(all_)}"
            for row in query(store_root, _THERE, runs=[run_id])
            for name, all_ in row.items()
        ]
        output.say("; ".join(["nothing matches", *there]))
