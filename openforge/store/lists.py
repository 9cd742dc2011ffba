"""The lists that a person looks at: runs, and the rollouts of a run. One query each, the same for command and app."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openforge.store.connect import query

type Row = dict[str, Any]

RUN_COLUMNS = (
    "run_id",
    "state",
    "rollouts",
    "done",
    "failed",
    "error",
    "cancelled",
    "reward",
    "created_at",
    "harnesses",
    "policy",
)
ROLLOUT_COLUMNS = (
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
UNDER_WAY = ("queued", "starting", "running", "grading")
_RUNS = """
    SELECT run_id, date_trunc('second', created_at) AS created_at, r.state,
        coalesce(policy->>'model', policy->>'$') AS policy,
        array_to_string(TRY_CAST(harnesses AS VARCHAR[]), ' ') AS harnesses, count(o.rollout_id) AS rollouts,
        count(*) FILTER (o.state = 'done') AS done, count(*) FILTER (o.state = 'failed') AS failed,
        count(*) FILTER (o.state IN ('error', 'lost')) AS error,
        count(*) FILTER (o.state = 'cancelled') AS cancelled, round(avg(reward), 3) AS reward
    FROM runs r LEFT JOIN rollouts o USING (run_id) GROUP BY ALL ORDER BY run_id DESC"""
_ROLLOUTS = """
    SELECT rollout_id, state, reward, coalesce(calls, 0) AS calls, prompt_tokens, completion_tokens, samples,
        CASE WHEN ended_at >= started_at THEN round(date_diff('millisecond', started_at, ended_at) / 1000, 1) END
            AS seconds, attempt, error_class,
        CASE WHEN length(detail) > 200 THEN left(detail, 200) || '…' ELSE detail END AS detail,
        task, harness, sample, started_at, step, group_id, seed
    FROM rollouts WHERE {} ORDER BY task, harness, sample"""


def list_runs(store_root: Path, runs: list[str] | None = None) -> list[Row]:
    """One row a run (of `runs`; default: all), the newest first: RUN_COLUMNS."""
    return query(store_root, _RUNS, runs=runs)


def list_rollouts(
    store_root: Path, run_id: str, wanted: Mapping[str, str] | None = None, *, failed: bool = False
) -> list[Row]:
    """One row a rollout of a run: ROLLOUT_COLUMNS, and its task, harness, sample, started_at, step, group_id, seed.

    `wanted`: task (with its set or without), harness, state. `failed`: only what did not end as done above 0.
    """
    chosen = dict(wanted or {})
    whole = {name: f"{name} = ${name}" for name in chosen}
    if "task" in chosen:
        whole["task"] = "(task = $task OR task LIKE '%/' || $task)"
    conditions = ["true", *whole.values()]
    if failed:
        conditions.append(f"(state NOT IN ('done', {', '.join(map(repr, UNDER_WAY))}) OR reward <= 0)")
    return query(store_root, _ROLLOUTS.format(" AND ".join(conditions)), chosen or None, runs=[run_id])
