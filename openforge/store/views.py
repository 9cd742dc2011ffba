"""The SQL of every view, over one table a kind of record in the schema `raw`.

Joins stand as `LEFT JOIN (… GROUP BY …)`: DuckDB drops such a join when none of its columns is asked for, so that
`select count(*) from calls` reads no ids and walks no tree. Knows no files; the tables come from connect.py.
"""

from openforge.store.schema import VIEWS, View

_KEY = "run_id, rollout_id, attempt"

# The states of one attempt only ever move forward, so the furthest one is the latest; its writer is the orchestrator
# that had the attempt, and when that is dead the attempt is lost, whoever has taken the run up since.
_ATTEMPTS = f"""
    WITH ranked AS (
        SELECT *, CASE state WHEN 'queued' THEN 0 WHEN 'starting' THEN 1 WHEN 'running' THEN 2 WHEN 'grading' THEN 3
                  ELSE 4 END AS reach
        FROM raw.rollout_state)
    SELECT {_KEY}, any_value(task) AS task, any_value(harness) AS harness,
        any_value(harness_version) AS harness_version, any_value(harness_hash) AS harness_hash,
        any_value(sample) AS sample, any_value(seed) AS seed, any_value(runtime) AS runtime,
        any_value(purpose) AS purpose, any_value(step) AS step, any_value(group_id) AS group_id,
        arg_max(state, (reach, seq)) AS reached, max(reach) = 4 AS ended,
        arg_max(recorder_id, (reach, seq)) AS recorder_id,
        arg_max(error_class, (reach, seq)) AS error_class, arg_max(detail, (reach, seq)) AS detail,
        arg_max(exit_code, (reach, seq)) AS exit_code, arg_max(duration_s, (reach, seq)) AS duration_s,
        arg_max(invalid_calls, (reach, seq)) AS invalid_calls,
        min(ts) FILTER (reach = 0) AS queued_ts, min(ts) FILTER (reach IN (1, 2)) AS started_ts,
        max(ts) FILTER (reach = 4) AS ended_ts
    FROM ranked GROUP BY ALL"""

_LIVE = "(SELECT run_id, recorder_id, true AS live FROM raw._live)"


def _rollouts(attempts: str) -> str:
    return f"""
    SELECT a.*, CASE WHEN a.ended OR live THEN reached ELSE 'lost' END AS state, reward,
        coalesce(calls, 0) AS calls, prompt_tokens, completion_tokens, coalesce(samples, 0) AS samples,
        {_time("queued_ts")} AS queued_at, {_time("started_ts")} AS started_at, {_time("ended_ts")} AS ended_at
    FROM ({attempts}) a
    LEFT JOIN {_LIVE} USING (run_id, recorder_id)
    LEFT JOIN (SELECT {_KEY}, arg_max(reward, seq) AS reward FROM raw.grade GROUP BY ALL) USING ({_KEY})
    LEFT JOIN (
        SELECT {_KEY}, count(*) AS calls, sum(coalesce(prompt_tokens, prompt_len)) AS prompt_tokens,
            sum(coalesce(completion_tokens, len(completion_ids))) AS completion_tokens
        FROM (SELECT {_KEY}, prompt_tokens, prompt_len, completion_tokens, completion_ids FROM raw.call_close
              UNION ALL SELECT {_KEY}, NULL, NULL, NULL, NULL FROM raw.call_abort) GROUP BY ALL) USING ({_KEY})
    LEFT JOIN (SELECT {_KEY}, count(*) AS samples FROM raw.sample GROUP BY ALL) USING ({_KEY})"""


def _time(column: str) -> str:
    return f"make_timestamp(CAST({column} * 1e6 AS BIGINT))"


_LATEST = "QUALIFY attempt = max(attempt) OVER (PARTITION BY run_id, rollout_id)"

# prompt = parent's prompt + parent's answer + what this call added. Each call is joined to what every call of its
# attempt added (`deltas`, in order); walking back along the parents picks the ones on its own path. Not a recursion:
# so a filter on the rollout reaches the files, memory is that of the ids as recorded, and only rows that are asked for
# are put together. A part without ids makes the prompt NULL: it is exact or absent.
_HISTORY = f"""
    SELECT {_KEY},
        list({{'parent': parent_call_id, 'call': call_id, 'at': 0, 'path': CAST([] AS INTEGER[])}}
            ORDER BY recorder_id DESC, seq DESC) AS links,
        list(CASE WHEN input_ids IS NOT NULL AND completion_ids IS NOT NULL
            THEN list_concat(input_ids, completion_ids) END ORDER BY recorder_id, seq) AS deltas
    FROM raw.call_close GROUP BY {_KEY}"""
_WALK = """list_reduce(links, lambda here, call: {
        'parent': CASE WHEN call.call = here.parent THEN call.parent ELSE here.parent END,
        'call': here.call,
        'at': here.at - 1,
        'path': CASE WHEN call.call = here.parent THEN list_prepend(here.at, here.path) ELSE here.path END},
        {'parent': parent_call_id, 'call': call_id, 'at': CAST(len(links) AS INTEGER),
         'path': CAST([] AS INTEGER[])})"""
_PROMPT = """CASE WHEN parent_call_id IS NULL THEN input_ids
        WHEN walk.parent IS NULL AND input_ids IS NOT NULL
            AND list_count(list_select(deltas, walk.path)) = len(walk.path)
        THEN list_concat(flatten(list_select(deltas, walk.path)), input_ids) END"""

_OPENED = """(SELECT run_id, call_id, any_value(model) AS model, any_value(host) AS host, min(ts) AS opened_ts,
        any_value(dialect) AS o_dialect, any_value(mode) AS o_mode, any_value(stream) AS o_stream
    FROM raw.call_open GROUP BY ALL)"""

_CALLS = f"""
    WITH ended AS (
        SELECT * EXCLUDE (kind, messages, ts), ts AS closed_ts, 'done' AS state FROM raw.call_close
        LEFT JOIN {_OPENED} USING (run_id, call_id)
        UNION ALL BY NAME
        SELECT * EXCLUDE (kind, ts, o_dialect, o_mode, o_stream), ts AS closed_ts, 'aborted' AS state,
            o_dialect AS dialect, o_mode AS mode, o_stream AS stream
        FROM raw.call_abort LEFT JOIN {_OPENED} USING (run_id, call_id)),
    waiting AS (
        SELECT o.* EXCLUDE (kind, ts), ts AS opened_ts, CASE WHEN live THEN 'open' ELSE 'lost' END AS state
        FROM raw.call_open o LEFT JOIN (SELECT *, true AS live FROM raw._live) USING (run_id, recorder_id)
        WHERE NOT EXISTS (FROM raw.call_close e WHERE e.run_id = o.run_id AND e.call_id = o.call_id)
            AND NOT EXISTS (FROM raw.call_abort e WHERE e.run_id = o.run_id AND e.call_id = o.call_id))
    SELECT *, {_PROMPT} AS prompt_ids, {_time("opened_ts")} AS opened_at, {_time("closed_ts")} AS closed_at
    FROM (SELECT c.*, deltas, {_WALK} AS walk
          FROM (FROM ended UNION ALL BY NAME FROM waiting) c LEFT JOIN ({_HISTORY}) USING ({_KEY}))"""

_BLOBS = "(SELECT hash, any_value(data) AS data, any_value(encoding) AS encoding FROM raw.blob GROUP BY hash)"

_MESSAGES = f"""
    SELECT {_KEY}, call_id, seq, m.position, m.role, coalesce(m.text, b.data) AS text, m.reasoning, m.tool_calls,
        m.tool_call_id
    FROM (SELECT {_KEY}, call_id, seq, unnest(messages) AS m FROM raw.call_close)
    LEFT JOIN {_BLOBS} b ON b.hash = m.text_blob"""

# versions is [[offset, version] …] by rising offset; almost always one version made the whole answer.
_VERSION = """CASE WHEN weight_version_min IS NOT DISTINCT FROM weight_version_max THEN weight_version_min ELSE
        list_last(list_filter(CAST(versions AS JSON[]), lambda v: CAST(v[0] AS BIGINT) < i))->>1 END"""

_TOKENS = f"""
    WITH token AS (
        SELECT {_KEY}, recorder_id, call_id, seq, prompt_len - len(input_ids) AS base, unnest(input_ids) AS token_id,
            generate_subscripts(input_ids, 1) AS i, false AS sampled, CAST(NULL AS FLOAT) AS logprob,
            CAST(NULL AS VARCHAR) AS weight_version
        FROM raw.call_close
        UNION ALL
        SELECT * EXCLUDE (weight_version_min, weight_version_max, versions), {_VERSION}
        FROM (SELECT {_KEY}, recorder_id, call_id, seq, prompt_len, unnest(completion_ids) AS token_id,
                  generate_subscripts(completion_ids, 1) AS i, true, unnest(logprobs), weight_version_min,
                  weight_version_max, versions FROM raw.call_close))
    SELECT t.*, base + i - 1 AS position, text
    FROM token t
    LEFT JOIN (SELECT run_id, recorder_id, any_value(hash) AS hash FROM raw.vocab GROUP BY ALL)
        USING (run_id, recorder_id)
    LEFT JOIN (SELECT hash, token_id, any_value(text) AS text FROM raw._vocab GROUP BY ALL) USING (hash, token_id)"""

_SAMPLES = f"""
    SELECT s.*, task, harness, reward
    FROM raw.sample s
    LEFT JOIN (SELECT run_id, rollout_id, max(attempt) AS latest, any_value(task) AS task, any_value(harness) AS harness
               FROM raw.rollout_state GROUP BY ALL) USING (run_id, rollout_id)
    LEFT JOIN (SELECT {_KEY}, arg_max(reward, seq) AS reward FROM raw.grade GROUP BY ALL) USING ({_KEY})
    WHERE attempt IS NOT DISTINCT FROM coalesce(latest, attempt)"""

# Several orchestrators may have had a run, one after the other: the last one says how it stands.
_RUNS = f"""
    SELECT s.* EXCLUDE (ts), {_time("first_ts")} AS created_at, {_time("ended_ts")} AS ended_at, reason,
        coalesce(e.state, CASE WHEN NOT coalesce(live, false) THEN 'interrupted' WHEN paused THEN 'paused'
            ELSE 'running' END) AS state
    FROM (SELECT *, min(ts) OVER (PARTITION BY run_id) AS first_ts FROM raw.run_start
          QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY coalesce(incarnation, 0) DESC, ts DESC) = 1) s
    LEFT JOIN (SELECT run_id, recorder_id, arg_max(state, seq) AS state, arg_max(reason, seq) AS reason,
                   max(ts) AS ended_ts FROM raw.run_end GROUP BY ALL) e USING (run_id, recorder_id)
    LEFT JOIN (SELECT run_id, recorder_id, arg_max(paused, seq) AS paused FROM raw.run_pause GROUP BY ALL)
        USING (run_id, recorder_id)
    LEFT JOIN {_LIVE} USING (run_id, recorder_id)"""


def _of_the_lineage(table: str, *names: str) -> str:
    """What a trainer told of a step, without the steps that a later start of it went back behind; told several times
    (for the same run, step and `names`), the last time counts: of the trainers, of the orchestrators, of the records.
    """
    return f"""
    SELECT t.* FROM {table} t
    LEFT JOIN (SELECT run_id, recorder_id, max(incarnation) AS life FROM raw.run_start GROUP BY ALL)
        USING (run_id, recorder_id)
    WHERE NOT EXISTS (FROM raw.train_start s
        WHERE s.run_id = t.run_id AND s.incarnation > t.incarnation AND s.from_step < t.step)
    QUALIFY row_number() OVER (PARTITION BY {", ".join(("run_id", "step", *names))}
        ORDER BY incarnation DESC NULLS LAST, life DESC NULLS LAST, seq DESC) = 1"""


_SQL = {
    "runs": _RUNS,
    "rollouts": _rollouts(f"FROM raw._attempts {_LATEST}"),
    "attempts": _rollouts("FROM raw._attempts"),
    "calls": _CALLS,
    "messages": _MESSAGES,
    "tokens": _TOKENS,
    "samples": _SAMPLES,
    "refused": f"""
        SELECT {_KEY}, ts, 'call' AS what, error_class AS reason, detail, NULL AS call_ids FROM raw.call_refused
        UNION ALL SELECT {_KEY}, ts, 'sample', reason, NULL, call_ids FROM raw.sample_refused""",
    "grades": "FROM raw.grade",
    "egress": "FROM raw.egress",
    "metrics": _of_the_lineage("raw.metric", "name"),
    "trained": f"""SELECT run_id, step, unnest(rollouts) AS rollout_id, weight_version, ts
        FROM ({_of_the_lineage("raw.train_step")})""",
    "tasks": f"""
        SELECT run_id, task, count(*) AS rollouts, count(reward) AS graded, count(*) FILTER (state = 'error') AS errors,
            avg(reward) AS reward
        FROM ({_rollouts(f"FROM raw._attempts {_LATEST}")}) GROUP BY run_id, task""",
    "harnesses": "FROM raw.harness_fingerprint",
    "blobs": f"FROM {_BLOBS}",
    "unreadable": "FROM raw._unreadable",
}


def create_statements() -> list[str]:
    """The statements that make every view, in order, over the tables of the schema `raw`."""
    return [f"CREATE OR REPLACE VIEW raw._attempts AS {_ATTEMPTS}", *map(_create, VIEWS)]


def _create(view: View) -> str:
    # The declared columns, in their order and with their types, whatever the query below hands up.
    columns = ", ".join(
        f"{_time('ts')} AS ts" if column.name == "ts" else f"CAST({column.name} AS {column.type}) AS {column.name}"
        for column in view.columns
    )
    return f"CREATE OR REPLACE VIEW {view.name} AS SELECT {columns} FROM ({_SQL[view.name]})"
