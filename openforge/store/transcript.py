"""One rollout as it happened: its calls in order, what each added to the conversation, how it was graded.

Data only, read once; the command and the app both show it. Does not know how.
"""

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from openforge.errors import UsageError
from openforge.store.connect import find_run, point_at, query, rows_of, with_views
from openforge.store.snapshot import Snapshot, Source
from openforge.wire import Said
from openforge.wire import rows_of as rows_said

type Row = dict[str, Any]

_CALL_COLUMNS = """
    call_id, seq, state, opened_at, closed_at, dialect, mode, stream, model, status, finish_reason, parent_call_id,
    break_reason, auxiliary, prompt_len, len(input_ids) AS added, len(completion_ids) AS sampled, prompt_tokens,
    completion_tokens, weight_version_min, weight_version_max, ttft_s, duration_s, overridden, dropped_tools,
    error_class, detail"""
_MESSAGES = "call_id, position, role, text, reasoning, tool_calls, tool_call_id"
_TOKENS = "call_id, position, token_id, text, sampled, logprob, weight_version"
_SAMPLES = "sample_id, len(token_ids) AS tokens, list_sum(loss_mask) AS trained, is_main, weight, reason, reward"


_BLOB = re.compile(r'\{"\$blob":"([0-9a-f]+)"\}')
_CANDIDATES = 6  # named when what was typed fits several


def is_unread(call: Row) -> bool:
    """Whether the recorder passed the request on without reading it: no ids, never trained."""
    return call["state"] == "done" and call["break_reason"] is None


@dataclass
class Turn:
    """One model call; `number` counts from 1 in the order in which they were recorded."""

    number: int
    call: Row
    messages: list[Row] = field(default_factory=list)
    tokens: list[Row] = field(default_factory=list)
    asked: list[Said] | None = None  # of a call that was not read, once it was looked for (store/asked.py)

    @property
    def unread(self) -> bool:
        return is_unread(self.call)

    def message_rows(self) -> list[Row]:
        """Its messages, with those of `asked`."""
        return [*rows_said(self.asked or []), *self.messages]


@dataclass
class Transcript:
    """A rollout's attempt; rows have the columns of the views they come from."""

    rollout: Row
    turns: list[Turn]
    samples: list[Row]
    refused: list[Row]
    grades: list[Row]
    egress: list[Row]


def find_rollout(store_root: Path, text: str) -> tuple[str, str]:
    """(run id, rollout id) a person meant: a rollout id, or its beginning when only one has it; the run may be
    `latest` or a prefix. Raises UsageError with what to type instead."""
    head, dot, rest = text.partition(".")
    run_id = find_run(store_root, head)
    sql = "SELECT DISTINCT rollout_id FROM attempts ORDER BY ALL"
    known = [row["rollout_id"] for row in query(store_root, sql, runs=[run_id])]
    wanted = f"{run_id}{dot}{rest}"
    hits = [name for name in known if name.startswith(wanted)]
    if wanted in hits or len(hits) == 1:
        return run_id, wanted if wanted in hits else hits[0]
    if hits:
        some = "".join(f"\n    openforge show {name}" for name in hits[:_CANDIDATES])
        more = f"\n    openforge rollouts {run_id}" if len(hits) > _CANDIDATES else ""
        raise UsageError(f"{text!r} could be {len(hits)} rollouts", hint=f"one of{some}{more}")
    near = difflib.get_close_matches(wanted, known, n=1)
    raise UsageError(
        f"no rollout is called {wanted!r}", hint=f"did you mean {near[0]}?" if near else f"openforge rollouts {run_id}"
    )


def find_call(store_root: Path, call_id: str, run_id: str | None = None) -> str:
    """The rollout that made a call, of one run or of any. Raises UsageError."""
    sql = "SELECT rollout_id FROM calls WHERE call_id = $call LIMIT 1"
    found = query(store_root, sql, {"call": call_id}, runs=None if run_id is None else [run_id])
    if not found:
        raise UsageError(f"no call is called {call_id!r}", hint="was its run deleted? openforge runs")
    return str(found[0]["rollout_id"])


def newest_rollout(store_root: Path) -> str:
    """The rollout of the newest run that was the last to start. UsageError when there is none."""
    run_id = find_run(store_root, "latest")
    sql = "SELECT rollout_id FROM rollouts ORDER BY started_at DESC NULLS LAST, rollout_id LIMIT 1"
    found = query(store_root, sql, runs=[run_id])
    if not found:
        raise UsageError(f"{run_id} has no rollouts yet", hint="openforge runs")
    return str(found[0]["rollout_id"])


def read_transcript(
    store_root: Path, rollout_id: str, *, attempt: int | None = None, turn: int | None = None, tokens: bool = False
) -> Transcript:
    """The latest attempt of a rollout (or the one asked for), all turns or one. Raises UsageError."""
    run_id = rollout_id.partition(".")[0]
    return with_views(store_root, lambda con: _read(con, rollout_id, attempt, turn, tokens), runs=[run_id])


def read_lines_of(
    con: duckdb.DuckDBPyConnection, lines: Path, vocabs: list[Path], live: Iterable[str], rollout_id: str
) -> Transcript:
    """The same of a file that holds the rollout's records and no others: of a run under way, whose journal may be
    large. `con` is one of `new_connection`; `live` names the writers that are alive."""
    run_id = rollout_id.partition(".")[0]
    source = Source(run_id, "", lines.name, lines, lines.stat().st_size)
    point_at(con, Snapshot(segments=[source], vocabs=vocabs, live=[(run_id, writer) for writer in live]))
    return _read(con, rollout_id, None, None, False)


def _read(
    con: duckdb.DuckDBPyConnection, rollout_id: str, attempt: int | None, turn: int | None, tokens: bool
) -> Transcript:
    attempts = _rows(con, "SELECT * FROM attempts WHERE rollout_id = ? ORDER BY attempt", [rollout_id])
    chosen = [row for row in attempts if attempt is None or row["attempt"] == attempt]
    if not chosen:
        raise UsageError(f"{rollout_id} has no attempt {attempt}", hint=f"it has {len(attempts)}, counted from 0")
    key = [rollout_id, chosen[-1]["attempt"]]

    def part(columns: str, view: str, order: str) -> list[Row]:
        sql = f"SELECT {columns} FROM {view} WHERE rollout_id = ? AND attempt IS NOT DISTINCT FROM ? ORDER BY {order}"
        return _rows(con, sql, key)

    turns = [Turn(number, call) for number, call in enumerate(part(_CALL_COLUMNS, "calls", "recorder_id, seq"), 1)]
    if turn is not None and not 1 <= turn <= len(turns):
        raise UsageError(f"{rollout_id} has no turn {turn}", hint=f"it has {len(turns)}, counted from 1")
    turns = [one for one in turns if turn is None or one.number == turn]
    messages = _by_call(part(_MESSAGES, "messages", "seq, position"))
    pieces = _by_call(part(_TOKENS, "tokens", "seq, position")) if tokens else {}
    for one in turns:
        one.messages = messages.get(one.call["call_id"], [])
        one.tokens = pieces.get(one.call["call_id"], [])
    return Transcript(
        rollout=chosen[-1],
        turns=turns,
        samples=part(_SAMPLES, "samples", "sample_id"),
        refused=part("what, reason, detail, call_ids", "refused", "ts"),
        grades=part("reward, details, duration_s", "grades", "ts"),
        egress=part("ts, host, port, decision, rule, method", "egress", "ts"),
    )


def _rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: list[Any]) -> list[Row]:
    return rows_of(con.sql(sql, params=parameters).to_arrow_table())


def _by_call(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["call_id"]].append({name: value for name, value in row.items() if name != "call_id"})
    return found


_TURN_TOKENS = """
    SELECT t.position, t.token_id, t.text, t.sampled, t.logprob, t.weight_version,
        coalesce(list_max(list_transform(s.masks, lambda mask: mask[t.position + 1])), 0) = 1 AS trained
    FROM tokens t LEFT JOIN (
        SELECT list(loss_mask) AS masks FROM samples
        WHERE rollout_id = $rollout AND attempt = $attempt AND list_contains(call_ids, $call)) s ON true
    WHERE t.rollout_id = $rollout AND t.attempt = $attempt AND t.call_id = $call
    ORDER BY t.seq, t.position"""


def read_turn_tokens(store_root: Path, rollout: str, attempt: int, call: str) -> list[Row]:
    """The tokens that a call added, in order, as the view `tokens` has them, and whether a sample trains each."""
    named = {"rollout": rollout, "attempt": attempt, "call": call}
    return query(store_root, _TURN_TOKENS, named, runs=[rollout.partition(".")[0]])


def read_turn_wire(store_root: Path, rollout: str, attempt: int, call: str) -> Row:
    """A call as it went over the wire: `request` and `response` (JSON text, either may be None) with the texts that
    are stored once put back in their place; `$history` still stands for the messages of the parent call."""
    sql = "SELECT request, response FROM calls WHERE rollout_id = $rollout AND attempt = $attempt AND call_id = $call"
    runs = [rollout.partition(".")[0]]
    found = query(store_root, sql, {"rollout": rollout, "attempt": attempt, "call": call}, runs=runs)
    if not found:
        return {"request": None, "response": None}
    hashes = find_blobs(found[0].values())
    sql = "SELECT hash, data, encoding FROM blobs WHERE list_contains($hashes, hash)"
    blobs = (
        {row["hash"]: row for row in query(store_root, sql, {"hashes": sorted(hashes)}, runs=runs)} if hashes else {}
    )
    return {name: text and fill_blobs(text, blobs) for name, text in found[0].items()}


def find_blobs(texts: Iterable[str | None]) -> set[str]:
    """The hashes that stand for a text or a value in these JSON texts."""
    return {match for text in texts if text for match in _BLOB.findall(text)}


def fill_blobs(text: str, blobs: dict[str, Row]) -> str:
    """The JSON text with each of `blobs` (rows of the view, by hash) in its place."""
    return _BLOB.sub(lambda match: _blob_text(match, blobs), text)


def _blob_text(match: re.Match[str], blobs: dict[str, Row]) -> str:
    blob = blobs.get(match[1])
    if blob is None or blob["encoding"]:
        return match[0]
    try:
        json.loads(blob["data"])
        return str(blob["data"])
    except ValueError:
        return json.dumps(blob["data"])
