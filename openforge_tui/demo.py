"""What the demo asks the store about a run: one row a harness, and one question over tokens.

Pure questions; cli/demo.py does the work and shows the answers.
"""

from pathlib import Path
from typing import Any

from openforge.store.connect import query

OVERRIDES = {
    "run.tasks": '["desk"]',
    "run.harnesses": '["react", "pi", "codex"]',
    "run.samples": "1",
    "run.mode": "train",
    "policy.model": "starter",
    "policy.engine": "vllm",
}
"""What the demo runs, whatever openforge.toml says."""

TOKENS = """
SELECT harness, count(*) AS sampled, round(avg(logprob), 3) AS mean_logprob,
       round(100 * avg(CAST(logprob < ln(0.5) AS INT)), 1) AS percent_below_half,
       arg_min(text, logprob) AS least_likely, round(exp(min(logprob)), 5) AS its_probability
FROM tokens JOIN rollouts USING (run_id, rollout_id, attempt)
WHERE sampled GROUP BY harness ORDER BY harness"""
"""How sure the policy was of what it sampled, by harness."""

_HARNESSES = """
SELECT harness, count(*) AS rollouts, round(avg(reward), 2) AS reward, sum(calls)::INT AS calls,
       sum(prompt_tokens)::INT AS prompt_tokens, sum(completion_tokens)::INT AS sampled_tokens,
       round(sum(samples) / count(*), 2) AS samples_a_rollout,
       count(*) FILTER (reward IS NOT NULL)::INT AS graded
FROM rollouts GROUP BY harness ORDER BY harness"""

_BREAKS = """
SELECT harness, break_reason AS what, count(*) AS n FROM calls JOIN rollouts USING (run_id, rollout_id, attempt)
WHERE break_reason NOT IN ('root', 'append') GROUP BY ALL ORDER BY n DESC"""

_ERRORS = "SELECT harness, error_class AS what, count(*) AS n FROM attempts WHERE error_class IS NOT NULL GROUP BY ALL"


def by_harness(store_root: Path, run_id: str) -> list[dict[str, Any]]:
    """Rollouts, reward, calls, tokens, samples a rollout, breaks by reason and errors by class, one row a harness."""
    rows = query(store_root, _HARNESSES, runs=[run_id])
    breaks, errors = (query(store_root, sql, runs=[run_id]) for sql in (_BREAKS, _ERRORS))
    return [{**row, "breaks": _of(breaks, row["harness"]), "errors": _of(errors, row["harness"])} for row in rows]


def tokens(store_root: Path, run_id: str) -> list[dict[str, Any]]:
    """The answer to TOKENS."""
    return query(store_root, TOKENS, runs=[run_id])


def _of(counts: list[dict[str, Any]], harness: str) -> str:
    return ", ".join(f"{row['what']} {row['n']}" for row in counts if row["harness"] == harness) or "none"
