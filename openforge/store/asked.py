"""What was asked in calls that the recorder could not read (they hold an image, as a rule), out of their wire bodies.

Of each call only what the unread call before it had not said, as `messages` has it of the others. Data only.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

from openforge.store.connect import rows_of, with_views
from openforge.store.transcript import Transcript, fill_blobs, find_blobs
from openforge.wire import HISTORIES, Said, history, read_body, role_of

_UNREAD = """
    SELECT call_id, request, len(messages) > 0 AS answered FROM raw.call_close
    WHERE rollout_id = $rollout AND attempt IS NOT DISTINCT FROM $attempt AND break_reason IS NULL
    ORDER BY recorder_id, seq"""


def read_asked(store_root: Path, rollout: str, attempt: int, calls: Iterable[str]) -> dict[str, list[Said]]:
    """What each of these calls asked, by its id; a call whose request was not kept has an empty list."""
    wanted = set(calls)
    runs = [rollout.partition(".")[0]]
    return with_views(store_root, lambda con: asked_of(con, rollout, attempt, wanted), runs=runs) if wanted else {}


def add_asked(store_root: Path, found: Transcript) -> None:
    """Put it into all turns of a transcript that were not read."""
    row = found.rollout
    unread = [turn.call["call_id"] for turn in found.turns if turn.unread]
    asked = read_asked(store_root, row["rollout_id"], row["attempt"], unread)
    for turn in found.turns:
        turn.asked = asked.get(turn.call["call_id"], [])


def asked_of(con: duckdb.DuckDBPyConnection, rollout: str, attempt: int, calls: set[str]) -> dict[str, list[Said]]:
    """The same, of a connection that has the views."""
    rows = rows_of(con.sql(_UNREAD, params={"rollout": rollout, "attempt": attempt}).to_arrow_table())
    found: dict[str, list[Said]] = {}
    before: list[Any] = []
    for row in rows:
        body = json.loads(row["request"] or "null")
        items = history(body) if isinstance(body, dict) else []
        if row["call_id"] in calls:
            found[row["call_id"]] = _read(con, body, _common(before, items)) if items else []
        before = items
        if row["answered"]:
            before = [*items, _ANSWER]
    return found


_ANSWER = object()  # of the call before: the history has it as one or several items of the assistant's


def _common(before: list[Any], items: list[Any]) -> int:
    """How many items the call before had shown."""
    at = 0
    for one in before:
        if one is _ANSWER:
            while at < len(items) and role_of(items[at]) == "assistant":
                at += 1
        elif at < len(items) and items[at] == one:
            at += 1
        else:
            return at
    return at


def _read(con: duckdb.DuckDBPyConnection, body: dict[str, Any], start: int) -> list[Said]:
    """From the item `start` on; what came before is left out of the blobs that are read."""
    kept = {name: value for name, value in body.items() if name in (*HISTORIES, "system", "instructions")}
    for name in HISTORIES:
        if isinstance(kept.get(name), list):
            kept[name] = [None] * start + kept[name][start:]
    text = json.dumps(kept, separators=(",", ":"))
    sql = "SELECT hash, data, encoding FROM blobs WHERE list_contains($hashes, hash)"
    hashes = sorted(find_blobs([text]))
    blobs = rows_of(con.sql(sql, params={"hashes": hashes}).to_arrow_table()) if hashes else []
    return read_body(json.loads(fill_blobs(text, {blob["hash"]: blob for blob in blobs})), start)
