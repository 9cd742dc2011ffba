"""Reads from the store what could be taught: every rollout of some runs, its rows without their ids.

A person's conditions run through the jailed SQL; what they leave out is marked, not dropped, so that it can be
counted. Does not know which rows are good.
"""

from collections.abc import Sequence
from pathlib import Path

from openforge.errors import UsageError
from openforge.store.connect import query
from openforge.store.sql import SafeSql
from trainer.selection import Candidate, Row

_TIMEOUT_S, _MEMORY = 600.0, "4Gi"
_ROLLOUTS = """
    SELECT r.run_id, r.rollout_id, r.task, r.harness, r.state, r.reward, r.calls, coalesce(c.has_ids, false) AS has_ids,
        coalesce(s.rows, []) AS rows, coalesce(f.refused, []) AS refused
    FROM rollouts r
    LEFT JOIN (
        SELECT run_id, rollout_id, attempt, bool_or(completion_ids IS NOT NULL) AS has_ids
        FROM raw.call_close GROUP BY ALL) c USING (run_id, rollout_id, attempt)
    LEFT JOIN (
        SELECT run_id, rollout_id, attempt, list({'sample_id': sample_id, 'length': len(token_ids),
            'highest_id': list_max(token_ids), 'fingerprint': hash(token_ids, loss_mask), 'vocab': vocab}
            ORDER BY is_main, sample_id) AS rows
        FROM raw.sample
        LEFT JOIN (SELECT run_id, recorder_id, any_value(hash) AS vocab FROM raw.vocab GROUP BY ALL)
            USING (run_id, recorder_id)
        GROUP BY ALL) s USING (run_id, rollout_id, attempt)
    LEFT JOIN (
        SELECT run_id, rollout_id, attempt, list(reason ORDER BY seq) AS refused
        FROM raw.sample_refused GROUP BY ALL) f USING (run_id, rollout_id, attempt)
    ORDER BY r.rollout_id"""
# A rollout without a row is asked too, so that it is counted under its own reason.
_WHERE = """
    SELECT rollout_id, sample_id
    FROM (FROM rollouts LEFT JOIN (SELECT * EXCLUDE (task, harness, reward) FROM samples)
          USING (run_id, rollout_id, attempt))
    WHERE ({}
    )"""


def read_candidates(
    store_root: Path, runs: Sequence[str], *, where: str | None = None, sql: str | None = None
) -> list[Candidate]:
    """Every rollout of `runs` (ids), by rollout id.

    `where` is a condition over the columns of `rollouts` and `samples`, `sql` a query with a column `rollout_id`; both
    must hold. Raises UsageError for SQL that is wrong or does more than read.
    """
    chosen_rows = _chosen_rows(store_root, runs, where) if where else None
    chosen = _chosen_rollouts(store_root, runs, sql) if sql else None
    found = [_candidate(row, chosen_rows, chosen) for row in query(store_root, _ROLLOUTS, runs=runs)]
    if unknown := sorted((chosen or set()) - {candidate.rollout_id for candidate in found}):
        raise UsageError(
            f"the SQL chose {unknown[0]!r}, which is no rollout of {', '.join(runs)}",
            hint="name its run, or `all` for every run of the store",
        )
    return found


def _candidate(
    row: dict[str, object], chosen_rows: set[tuple[str, str | None]] | None, chosen: set[str] | None
) -> Candidate:
    name, rows = str(row["rollout_id"]), row.pop("rows")
    assert isinstance(rows, list)
    wanted = chosen is None or name in chosen
    if chosen_rows is not None:
        wanted = wanted and any((name, one["sample_id"]) in chosen_rows for one in rows or [{"sample_id": None}])
    marked = tuple(Row(**one, wanted=chosen_rows is None or (name, one["sample_id"]) in chosen_rows) for one in rows)
    refused = row.pop("refused")
    assert isinstance(refused, list)
    return Candidate(**row, rows=marked, refused=tuple(refused), wanted=wanted)  # type: ignore[arg-type]


def _chosen_rows(store_root: Path, runs: Sequence[str], where: str) -> set[tuple[str, str | None]]:
    table = SafeSql(store_root, runs=runs).query(_WHERE.format(where), _TIMEOUT_S, _MEMORY)
    return set(zip(table["rollout_id"].to_pylist(), table["sample_id"].to_pylist(), strict=True))


def _chosen_rollouts(store_root: Path, runs: Sequence[str], sql: str) -> set[str]:
    table = SafeSql(store_root, runs=runs).query(sql, _TIMEOUT_S, _MEMORY)
    if "rollout_id" not in table.column_names:
        raise UsageError(
            f"the SQL gives {', '.join(table.column_names)}, and no rollout_id",
            hint='for example --sql "SELECT rollout_id FROM rollouts WHERE duration_s < 60"',
        )
    return set(map(str, table["rollout_id"].to_pylist()))
