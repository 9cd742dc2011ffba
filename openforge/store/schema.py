"""Every view and its columns, declared once: rendered to DuckDB, to Arrow and to docs/schema.md.

What a journal record holds is declared in openforge/journal/records.py and rendered here to the columns that
`read_json` and Parquet are read with. A test fails when a rendering and the declaration drift apart. Holds no query.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from openforge.journal.records import HEADER, KINDS, Column, Type

if TYPE_CHECKING:
    import pyarrow as pa

_SCALARS = {
    Type.TEXT: "VARCHAR",
    Type.INT: "BIGINT",
    Type.FLOAT: "DOUBLE",
    Type.BOOL: "BOOLEAN",
    Type.INTS: "INTEGER[]",  # token ids and masks: 32 bits are enough and half the memory
    Type.FLOATS: "FLOAT[]",  # engines answer float32
    Type.TEXTS: "VARCHAR[]",
    Type.JSON: "JSON",
}
TOOL_CALLS = 'STRUCT(id VARCHAR, "name" VARCHAR, arguments VARCHAR)[]'


class Col(NamedTuple):
    """A column of a view: its DuckDB type and what it means."""

    name: str
    type: str
    doc: str = ""


class View(NamedTuple):
    """What a person can select from."""

    name: str
    doc: str
    columns: tuple[Col, ...]


def sql_type(column: Column) -> str:
    """The DuckDB type of a record's column."""
    if column.type is Type.ROWS:
        return f"STRUCT({', '.join(f'{field.name} {sql_type(field)}' for field in column.fields)})[]"
    return _SCALARS[column.type]


def record_columns(kind: str) -> dict[str, str]:
    """Name and DuckDB type of every column of a kind of record, the header first."""
    return {column.name: sql_type(column) for column in (*HEADER, *KINDS[kind])}


def raw_name(kind: str) -> str:
    """The table of a kind of record as it was written: `raw.call_close`."""
    return f"raw.{kind.replace('.', '_')}"


def _cols(text: str) -> tuple[Col, ...]:
    """One column a line: `name TYPE  what it means`."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        left, _, doc = line.strip().partition("  ")
        name, _, type_ = left.partition(" ")
        found.append(Col(name, TOOL_CALLS if type_ == "TOOL_CALLS" else type_, doc.strip()))
    return tuple(found)


_ATTEMPT = """
    run_id VARCHAR
    rollout_id VARCHAR  RUN.TASK.HARNESS.SAMPLE
    attempt BIGINT  0 is the first; a new one follows an error that was ours
"""
_ROLLOUT = f"""{_ATTEMPT}
    task VARCHAR
    harness VARCHAR
    harness_version VARCHAR
    harness_hash VARCHAR  of the harness's manifest and files
    sample BIGINT
    seed BIGINT  of the task's start files
    state VARCHAR  queued, starting, running, grading, done, failed, error, cancelled; lost = its orchestrator died
    error_class VARCHAR
    detail VARCHAR
    reward DOUBLE  of this attempt's grade
    queued_at TIMESTAMP  UTC, as all times here
    started_at TIMESTAMP
    ended_at TIMESTAMP
    duration_s DOUBLE
    exit_code BIGINT  of the harness
    runtime VARCHAR
    calls BIGINT  model calls that ended, side calls included
    prompt_tokens BIGINT
    completion_tokens BIGINT
    samples BIGINT  training rows
    purpose VARCHAR  train or eval, when it was asked for so
    step BIGINT  of the training that asked for it
    group_id VARCHAR  what its reward is compared within
    invalid_calls BIGINT  tool calls that no harness could have run
"""

VIEWS: tuple[View, ...] = (
    View(
        "runs",
        "One row a run, as the last orchestrator that took it up left it.",
        _cols("""
            run_id VARCHAR
            created_at TIMESTAMP
            state VARCHAR  running, paused, done, failed, error, cancelled; interrupted = its orchestrator died
            ended_at TIMESTAMP
            reason VARCHAR
            config JSON  as it was in force, secrets hidden
            tasks JSON
            harnesses JSON
            samples BIGINT  rollouts asked for each task and harness
            policy JSON
            version VARCHAR  of OpenForge
        """),
    ),
    View("rollouts", "One row a rollout: its latest attempt.", _cols(_ROLLOUT)),
    View("attempts", "One row an attempt, the earlier ones too.", _cols(_ROLLOUT)),
    View(
        "calls",
        "One row a model call. Add `where rollout_id = …` when you select prompt_ids: it is rebuilt on the way.",
        _cols(f"""{_ATTEMPT}
            call_id VARCHAR
            recorder_id VARCHAR  with seq the only order; wall clocks are decoration
            seq BIGINT
            state VARCHAR  done, aborted, open; lost = its recorder died
            opened_at TIMESTAMP
            closed_at TIMESTAMP
            dialect VARCHAR
            mode VARCHAR  train or record
            stream BOOLEAN
            model VARCHAR  as the harness named it
            host VARCHAR
            status BIGINT  HTTP status
            finish_reason VARCHAR
            parent_call_id VARCHAR  the call whose prompt and answer this one continues
            break_reason VARCHAR  why it continues its parent, or why it could not
            auxiliary BOOLEAN  a side call (title, quota), not trained
            prompt_ids INTEGER[]  the full prompt; NULL when a part of it has no ids
            input_ids INTEGER[]  what this call added to its parent's path before the answer
            prompt_len BIGINT  ids of the full prompt
            completion_ids INTEGER[]
            logprobs FLOAT[]  of completion_ids
            weight_version_min VARCHAR
            weight_version_max VARCHAR
            versions JSON  [[offset in the answer, weight version] …]
            ttft_s DOUBLE
            duration_s DOUBLE
            max_tokens BIGINT
            sampling JSON
            overridden JSON  what the harness asked for and was not given
            prompt_tokens BIGINT  usage as it was told to the harness
            completion_tokens BIGINT
            dropped_tools VARCHAR[]  hosted tools that were left out
            error_class VARCHAR  of an aborted call
            detail VARCHAR
            request JSON  the wire body; $history and $blob stand for what is stored already
            request_bytes BIGINT
            response JSON
        """),
    ),
    View(
        "messages",
        "One row a message that a call added, its answer included; position counts in the whole conversation.",
        _cols(f"""{_ATTEMPT}
            call_id VARCHAR  of one that could not be read (break_reason is null: it sent an image) only the answer
            seq BIGINT
            position BIGINT
            role VARCHAR
            text VARCHAR
            reasoning VARCHAR
            tool_calls {TOOL_CALLS}
            tool_call_id VARCHAR
        """),
    ),
    View(
        "tokens",
        "One row a token that a call added: first its input, then what was sampled. A path's position is absolute.",
        _cols(f"""{_ATTEMPT}
            call_id VARCHAR
            seq BIGINT
            position BIGINT  in the path from its root, from 0
            token_id INTEGER
            text VARCHAR  from the policy's vocabulary
            sampled BOOLEAN
            logprob FLOAT
            weight_version VARCHAR
        """),
    ),
    View(
        "samples",
        "One row a training row of a rollout's latest attempt, with that attempt's reward.",
        _cols(f"""{_ATTEMPT}
            sample_id VARCHAR
            task VARCHAR
            harness VARCHAR
            call_ids VARCHAR[]
            token_ids INTEGER[]
            loss_mask INTEGER[]  1 on the sampled ids that this row trains
            logprobs FLOAT[]  NULL where not sampled
            versions JSON  [[position in the row, weight version] …]
            reward DOUBLE
            is_main BOOLEAN
            weight DOUBLE  sums to 1 over a rollout
            reason VARCHAR
        """),
    ),
    View(
        "refused",
        "What was not kept or not answered: calls that were turned away, paths that gave no training row.",
        _cols(f"""{_ATTEMPT}
            ts TIMESTAMP
            what VARCHAR  call or sample
            reason VARCHAR
            detail VARCHAR
            call_ids VARCHAR[]
        """),
    ),
    View(
        "grades",
        "One row a grade.",
        _cols(f"""{_ATTEMPT}
            ts TIMESTAMP
            reward DOUBLE
            details JSON
            duration_s DOUBLE
        """),
    ),
    View(
        "egress",
        "What a sandbox tried to reach besides the model.",
        _cols(f"""{_ATTEMPT}
            ts TIMESTAMP
            host VARCHAR
            port BIGINT
            decision VARCHAR  allow or refuse
            rule VARCHAR
            method VARCHAR
        """),
    ),
    View(
        "metrics",
        "Numbers over steps, one row a step and name. Not those of steps that a restarted trainer went back behind.",
        _cols("""
            run_id VARCHAR
            step BIGINT
            name VARCHAR
            value DOUBLE
            ts TIMESTAMP
            incarnation BIGINT  of the trainer, when one was at work; 0 is a run's first
        """),
    ),
    View(
        "trained",
        "One row a training step and rollout that it learned from, of the steps that the weights come from: those that"
        " a restarted trainer went back behind are left out.",
        _cols("""
            run_id VARCHAR
            step BIGINT
            rollout_id VARCHAR
            weight_version VARCHAR  of the weights that the step made
            ts TIMESTAMP
        """),
    ),
    View(
        "tasks",
        "One row a run and task: how its rollouts ended.",
        _cols("""
            run_id VARCHAR
            task VARCHAR
            rollouts BIGINT
            graded BIGINT
            errors BIGINT  ours, never a reward
            reward DOUBLE  mean over the graded ones
        """),
    ),
    View(
        "harnesses",
        "What a harness was seen to do.",
        _cols("""
            run_id VARCHAR
            ts TIMESTAMP
            harness VARCHAR
            version VARCHAR
            fingerprint JSON
        """),
    ),
    View(
        "blobs",
        "Long texts by their hash.",
        _cols("""
            hash VARCHAR
            data VARCHAR
            encoding VARCHAR  base64 when the bytes are no text
        """),
    ),
    View(
        "unreadable",
        "Lines of segments that are no records (a torn end counts while its writer lives); nothing else hides them.",
        _cols("""
            run_id VARCHAR
            recorder_id VARCHAR
            segment VARCHAR
            lines BIGINT
        """),
    ),
)
BY_NAME: Mapping[str, View] = {view.name: view for view in VIEWS}


def arrow_schema(view: View) -> "pa.Schema":
    """The view's Arrow schema, as DuckDB hands its rows out."""
    import pyarrow as pa

    text, tool_call = pa.string(), [("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())]
    types = {
        "VARCHAR": text,
        "JSON": text,
        "BIGINT": pa.int64(),
        "INTEGER": pa.int32(),
        "DOUBLE": pa.float64(),
        "FLOAT": pa.float32(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us"),
        "INTEGER[]": pa.list_(pa.int32()),
        "FLOAT[]": pa.list_(pa.float32()),
        "VARCHAR[]": pa.list_(text),
        TOOL_CALLS: pa.list_(pa.struct(tool_call)),
    }
    return pa.schema([(column.name, types[column.type]) for column in view.columns])


def markdown() -> str:
    """docs/schema.md."""
    lines = [
        "# What you can ask in SQL",
        "",
        "Written by `openforge/store/schema.py`; a test holds the two equal. Times are UTC. Below the views lie the",
        "records as they were written, one table a kind: `raw.call_close`, `raw.rollout_state` and so on.",
    ]
    for view in VIEWS:
        lines += ["", f"## {view.name}", view.doc, "", "| column | type | meaning |", "|---|---|---|"]
        lines += [
            f"| {column.name} | {_short(column.type)} | {column.doc.replace('|', chr(92) + '|')} |"
            for column in view.columns
        ]
    return "\n".join(lines) + "\n"


def _short(type_: str) -> str:
    return f"`{type_}`"
