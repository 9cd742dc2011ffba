"""`openforge rollouts`: what became of each rollout of a run. One query; the store knows the rest."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

COLUMNS = (
    "rollout_id",
    "state",
    "reward",
    "error_class",
    "calls",
    "completion_tokens",
    "prompt_tokens",
    "samples",
    "seconds",
    "attempt",
    "detail",
)
_HEADERS = {"error_class": "error", "prompt_tokens": "tokens in", "completion_tokens": "sampled"}
_SQL = """
    SELECT rollout_id, state, reward, coalesce(calls, 0) AS calls, prompt_tokens, completion_tokens, samples,
        round(date_diff('millisecond', started_at, ended_at) / 1000, 1) AS seconds, attempt, error_class,
        CASE WHEN length(detail) > 200 THEN left(detail, 200) || '…' ELSE detail END AS detail
    FROM rollouts WHERE {} ORDER BY task, harness, sample"""
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
) -> None:
    """List the rollouts of a run."""
    from openforge.store.connect import find_run, query

    store_root = settings.current().load().store_root
    run_id = find_run(store_root, run)
    wanted = {"task": task, "harness": harness, "state": state}
    chosen = {name: value for name, value in wanted.items() if value is not None}
    whole = {name: f"{name} = ${name}" for name in chosen}
    if task is not None:
        whole["task"] = "(task = $task OR task LIKE '%/' || $task)"  # with its set, or without
    conditions = ["true", *whole.values()]
    if failed:
        conditions.append("(state NOT IN ('done', 'queued', 'starting', 'running', 'grading') OR reward <= 0)")
    rows = query(store_root, _SQL.format(" AND ".join(conditions)), chosen or None, runs=[run_id])
    output.emit(rows, COLUMNS, headers=_HEADERS)
    if rows:
        output.say(f"next: openforge show {rows[0]['rollout_id']}")
    elif chosen or failed:
        there = [
            f"{name} are {', '.join(all_)}"
            for row in query(store_root, _THERE, runs=[run_id])
            for name, all_ in row.items()
        ]
        output.say("; ".join(["nothing matches", *there]))
