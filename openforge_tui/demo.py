"""What the demo asks the store about a run: one row a harness, and one question over tokens.

Pure questions; cli/demo.py does the work and shows the answers.
"""

from pathlib import Path
from typing import Any

from openforge.store.connect import query

OVERRIDES = {
    "run.tasks": '["desk"]',
    "run.harnesses": '["react", "pi", "codex"]',
    "run.mode": "train",
    "policy.model": "starter",
    "policy.engine": "vllm",
}
"""What the demo runs, whatever openforge.toml says."""

_HARNESSES = """
SELECT harness, count(*) AS rollouts, round(avg(reward), 2) AS reward, sum(calls)::INT AS calls,
       sum(prompt_tokens)::INT AS prompt_tokens, sum(completion_tokens)::INT AS sampled_tokens,
       round(sum(samples) / count(*), 2) AS samples_a_rollout,
       count(*) FILTER (reward IS NOT NULL)::INT AS graded
FROM rollouts GROUP BY harness ORDER BY harness"""

_BREAKS = """
SELECT harness, break_reason AS what, count(*) AS n FROM calls JOIN rollouts USING (run_id, rollout_id, attempt)
WHERE break_reason NOT IN ('root', 'append') GROUP BY ALL ORDER BY n DESC"""

_CLASSES = """
SELECT harness, error_class AS what, count(*) AS n FROM attempts
WHERE state = ? AND error_class IS NOT NULL GROUP BY ALL ORDER BY n DESC"""


def by_harness(store_root: Path, run_id: str) -> list[dict[str, Any]]:
    """Rollouts, reward, calls, tokens, samples a rollout, breaks, failures and errors by class, one row a harness."""
    rows = query(store_root, _HARNESSES, runs=[run_id])
    counts = {
        "breaks": query(store_root, _BREAKS, runs=[run_id]),
        "failed": query(store_root, _CLASSES, ["failed"], runs=[run_id]),
        "errors": query(store_root, _CLASSES, ["error"], runs=[run_id]),
    }
    return [{**row, **{name: _of(count, row["harness"]) for name, count in counts.items()}} for row in rows]


def tokens_sql(run_id: str) -> str:
    """How sure the policy was of what it sampled, by harness."""
    return (
        "SELECT harness, count(*) AS sampled, round(avg(logprob), 3) AS mean_logprob, "
        "arg_min(text, logprob) AS least_likely, exp(min(logprob)) AS its_probability "
        "FROM tokens JOIN rollouts USING (run_id, rollout_id, attempt) "
        f"WHERE sampled AND run_id = '{run_id}' GROUP BY harness ORDER BY harness"
    )


def tokens(store_root: Path, run_id: str) -> list[dict[str, Any]]:
    """The answer to `tokens_sql`."""
    return query(store_root, tokens_sql(run_id), runs=[run_id])


def _of(counts: list[dict[str, Any]], harness: str) -> str:
    return ", ".join(f"{row['what']} {row['n']}" for row in counts if row["harness"] == harness) or "none"
