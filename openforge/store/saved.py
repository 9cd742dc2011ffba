"""Questions made ready, in SQL over the views: what one asks of a run again and again.

`openforge sql --saved NAME` asks them, the app puts them into its editor to go on from. Data only; a question says
nothing that is not recorded: where something is a guess, or is missing, `tells` says so.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Saved(NamedTuple):
    """One question. `tells`: what its rows say."""

    name: str
    tells: str
    sql: str


# What a tool that failed says. An exit code of 0 is no failure whatever was printed, hence no plain "error".
_TOOL_ERROR = (
    r"(?im)(exit(ed with)? ?(code|status)?:? -?[1-9]|^\s*error:|command not found|no such file or directory"
    r"|permission denied|syntax error|traceback \(most recent call last\))"
)

_ALL = (
    Saved(
        "harnesses",
        "Success by harness; success is the share of graded rollouts with a reward above 0.",
        """
SELECT harness, count(*) AS rollouts, count(reward) AS graded,
    count(*) FILTER (reward > 0) / nullif(count(reward), 0) AS success,
    avg(reward) AS reward, count(*) FILTER (state IN ('error', 'lost')) AS errors,
    sum(calls) AS calls, sum(completion_tokens) AS sampled
FROM rollouts
GROUP BY ALL
ORDER BY harness""",
    ),
    Saved(
        "lost",
        "Where reward was lost: tasks and harnesses, the lowest reward first, with a rollout to look at.",
        """
SELECT task, harness, count(*) AS rollouts, avg(reward) AS reward,
    max(avg(reward)) OVER (PARTITION BY task) AS best_reward,
    arg_min(rollout_id, reward) AS rollout_id
FROM rollouts
WHERE reward IS NOT NULL
GROUP BY task, harness
ORDER BY reward, best_reward DESC, task, harness""",
    ),
    Saved(
        "breaks",
        "Why calls continued the one before, or could not: append and root are as it should be.",
        """
SELECT harness, break_reason, count(*) AS calls,
    count(*) / sum(count(*)) OVER (PARTITION BY harness) AS share, any_value(call_id) AS call_id
FROM calls JOIN rollouts USING (run_id, rollout_id, attempt)
GROUP BY harness, break_reason
ORDER BY harness, calls DESC""",
    ),
    Saved(
        "slow",
        "The slowest calls.",
        """
SELECT rollout_id, call_id, state, duration_s, ttft_s, prompt_len, len(completion_ids) AS sampled,
    len(completion_ids) / nullif(duration_s, 0) AS tokens_per_s
FROM calls
ORDER BY duration_s DESC NULLS LAST
LIMIT 50""",
    ),
    Saved(
        "lengths",
        "Each call's length and latency, in order.",
        """
SELECT rollout_id, attempt, call_id, row_number() OVER path AS turn, prompt_len,
    coalesce(len(completion_ids), completion_tokens) AS sampled, ttft_s, duration_s
FROM calls
WINDOW path AS (PARTITION BY run_id, rollout_id, attempt ORDER BY recorder_id, seq)
ORDER BY rollout_id, attempt, turn""",
    ),
    Saved(
        "garbled",
        "Answers that look broken, a guess: characters that are none, a token 10 times on end, phrases over again.",
        """
WITH phrases AS (
    SELECT rollout_id, call_id, list_transform(range(1, len(completion_ids) - 6),
        lambda i: completion_ids[i:i + 7]) AS eights
    FROM calls
    WHERE len(completion_ids) >= 64),
sampled AS (
    SELECT rollout_id, call_id, unnest(completion_ids) AS token_id, generate_subscripts(completion_ids, 1) AS i
    FROM calls),
stretches AS (
    SELECT rollout_id, call_id, token_id, count(*) AS times
    FROM (SELECT *, i - row_number() OVER (PARTITION BY rollout_id, call_id, token_id ORDER BY i) AS stretch
          FROM sampled)
    GROUP BY rollout_id, call_id, token_id, stretch
    HAVING count(*) >= 10)
SELECT rollout_id, call_id, 'characters that are none' AS what,
    sum(length(said) - length(replace(said, chr(65533), ''))) AS times, left(any_value(said), 80) AS example
FROM (SELECT rollout_id, call_id, concat_ws(' ', reasoning, text, CAST(tool_calls AS VARCHAR)) AS said
      FROM messages WHERE role = 'assistant')
WHERE contains(said, chr(65533))
GROUP BY ALL
UNION ALL
SELECT rollout_id, call_id, 'one token again and again', max(times), 'token ' || arg_max(token_id, times)
FROM stretches
GROUP BY ALL
UNION ALL
SELECT rollout_id, call_id, 'phrases again and again', len(eights) - list_unique(eights),
    'of ' || len(eights) || ' stretches of 8 tokens'
FROM phrases
WHERE list_unique(eights) < len(eights) / 2
ORDER BY times DESC, call_id""",
    ),
    Saved(
        "surprisal",
        "How sure the policy was, by turn: the mean of -logprob over what it sampled, an estimate of its entropy.",
        """
SELECT turn, harness, count(*) AS calls, sum(len(logprobs)) AS tokens,
    -sum(list_sum(logprobs)) / sum(len(logprobs)) AS surprisal
FROM (SELECT *, row_number() OVER (PARTITION BY run_id, rollout_id, attempt ORDER BY recorder_id, seq) AS turn
      FROM calls WHERE len(logprobs) > 0 AND auxiliary IS NOT true)
JOIN rollouts USING (run_id, rollout_id, attempt)
GROUP BY turn, harness
ORDER BY turn, harness""",
    ),
    Saved(
        "reference",
        "How likely each version of the weights found what it sampled, beside the trainer's mean KL to the reference;"
        " the reference's own logprobs of tokens are not recorded.",
        """
WITH sampled AS (
    SELECT run_id, weight_version, count(*) AS tokens, avg(logprob) AS logprob, exp(avg(logprob)) AS probability
    FROM tokens WHERE sampled GROUP BY ALL),
made AS (SELECT run_id, weight_version, max(step) AS step FROM trained GROUP BY ALL),
told AS (
    SELECT run_id, step, any_value(value) FILTER (name = 'train.kl_to_reference') AS kl_to_reference,
        any_value(value) FILTER (name = 'train.kl') AS kl_of_update
    FROM metrics GROUP BY ALL)
SELECT run_id, weight_version, step, tokens, logprob, probability, kl_to_reference, kl_of_update
FROM sampled FULL JOIN made USING (run_id, weight_version) LEFT JOIN told USING (run_id, step)
ORDER BY run_id, step NULLS FIRST, weight_version""",
    ),
    Saved(
        "recovery",
        "Rollouts in which a tool failed (by what it said), and how many of them succeeded all the same.",
        f"""
WITH answered AS (
    SELECT run_id, rollout_id, attempt, seq, position, tool_call_id,
        regexp_matches(text, '{_TOOL_ERROR}') AS failed
    FROM messages WHERE role = 'tool'),
told AS (
    SELECT run_id, rollout_id, attempt, count(DISTINCT coalesce(tool_call_id, position::VARCHAR)) FILTER (failed) AS
            errors,
        coalesce(max((seq, position)) FILTER (NOT failed) > min((seq, position)) FILTER (failed), false) AS went_on
    FROM answered GROUP BY ALL)
SELECT harness, count(*) FILTER (errors > 0) AS rollouts_with_errors, sum(errors) AS errors,
    count(*) FILTER (errors > 0 AND went_on) AS tool_worked_later,
    count(*) FILTER (errors > 0 AND reward > 0) AS succeeded,
    count(*) FILTER (errors > 0 AND reward > 0) / nullif(count(*) FILTER (errors > 0), 0) AS recovered,
    count(*) FILTER (errors = 0 AND reward > 0) / nullif(count(*) FILTER (errors = 0), 0) AS success_without_errors
FROM told JOIN rollouts USING (run_id, rollout_id, attempt)
GROUP BY harness
ORDER BY harness""",
    ),
    Saved(
        "errors",
        "What went wrong and was not the agent's doing, with an example.",
        """
SELECT error_class, count(*) AS attempts, any_value(detail) AS example, any_value(rollout_id) AS rollout_id
FROM attempts
WHERE error_class IS NOT NULL
GROUP BY error_class
ORDER BY attempts DESC""",
    ),
    Saved(
        "surprising",
        "The least likely tokens that were sampled.",
        """
SELECT rollout_id, call_id, position, text, logprob
FROM tokens
WHERE sampled
ORDER BY logprob
LIMIT 20""",
    ),
    Saved(
        "tools",
        "Which tools were called.",
        """
SELECT call.name AS tool, count(*) AS calls, count(DISTINCT rollout_id) AS rollouts
FROM (SELECT rollout_id, unnest(tool_calls) AS call FROM messages)
GROUP BY tool
ORDER BY calls DESC""",
    ),
    Saved(
        "egress",
        "What sandboxes tried to reach besides the model.",
        """
SELECT host, port, decision, rule, count(*) AS times, any_value(rollout_id) AS rollout_id
FROM egress
GROUP BY ALL
ORDER BY times DESC""",
    ),
)
SAVED: Mapping[str, Saved] = {saved.name: saved._replace(sql=saved.sql.strip()) for saved in _ALL}
