"""`openforge runs`: what was run. One query; the store knows the rest."""

import typer

from openforge_tui.cli import output, settings

COLUMNS = ("run_id", "state", "rollouts", "done", "failed", "error", "reward", "created_at", "harnesses", "policy")
_SQL = """
    SELECT run_id, date_trunc('second', created_at) AS created_at, r.state,
        coalesce(policy->>'model', policy->>'$') AS policy,
        array_to_string(TRY_CAST(harnesses AS VARCHAR[]), ' ') AS harnesses, count(o.rollout_id) AS rollouts,
        count(*) FILTER (o.state = 'done') AS done, count(*) FILTER (o.state = 'failed') AS failed,
        count(*) FILTER (o.state IN ('error', 'lost')) AS error, round(avg(reward), 3) AS reward
    FROM runs r LEFT JOIN rollouts o USING (run_id) GROUP BY ALL ORDER BY run_id DESC"""


def register(app: typer.Typer) -> None:
    app.command()(runs)


def runs() -> None:
    """List runs, the newest first."""
    from openforge.store.connect import query

    rows = query(settings.current().load().store_root, _SQL)
    output.emit(rows, COLUMNS)
    output.say(
        "next: openforge rollouts latest" if rows else "there are no runs yet; next: openforge demo, or openforge run"
    )
