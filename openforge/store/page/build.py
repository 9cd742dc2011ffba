"""A run as one HTML file that needs nothing else: for a colleague, for the record.

Rows in, HTML out. Each rollout is a JSON element that the page reads when it is opened; a long text or list of ids is
an element of its own, once. Data is never markup: JSON without `<`, `>` and `&` in it, and a policy that lets the page
run its own script and nothing besides. Logprobs are rounded to four digits. Does not know how the page looks.
"""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from html import escape
from itertools import batched
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import orjson

from openforge.errors import UsageError
from openforge.images import Image
from openforge.store.asked import asked_of
from openforge.store.lists import UNDER_WAY
from openforge.store.transcript import is_unread
from openforge.wire import rows_of

type Row = dict[str, Any]

LIMIT = 2000  # rollouts, unless a person says how many
SIZE_BYTES = 200_000_000  # of their elements, likewise
IMAGE_BYTES = 5 << 20  # of one image; a larger one is named, not shown
_BATCH = 100
_SHARED = 400  # bytes of JSON from which on something is worth an element of its own
_FOLDER = Path(__file__).parent
_ESCAPES = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}

_RUN = """
    SELECT run_id, state, created_at, ended_at, reason, version, samples,
        coalesce(policy->>'model', policy->>'$') AS policy, CAST(harnesses AS VARCHAR[]) AS harnesses
    FROM runs"""
_BY_HARNESS = """
    SELECT harness, any_value(harness_version) AS version, count(*) AS rollouts,
        count(*) FILTER (state = 'done') AS done, count(*) FILTER (state = 'failed') AS failed,
        count(*) FILTER (state IN ('error', 'lost')) AS error, avg(reward) AS reward, count(reward) AS graded,
        CAST(sum(completion_tokens) AS BIGINT) AS sampled
    FROM rollouts GROUP BY harness ORDER BY harness"""
# What went wrong comes first, then the lowest rewards, so that a limit leaves out what needs the least looking at.
_CHOSEN = """
    CREATE OR REPLACE TEMP TABLE page_rollouts AS
    SELECT row_number() OVER (ORDER BY state NOT IN ('error', 'lost', 'failed', 'cancelled'),
            reward NULLS LAST, rollout_id) - 1 AS n, rollout_id, attempt, task, harness, harness_version, sample, state,
        reward, calls, prompt_tokens, completion_tokens, samples, invalid_calls, exit_code, step, error_class, detail,
        CASE WHEN ended_at >= started_at THEN date_diff('millisecond', started_at, ended_at) / 1000 END AS seconds,
        started_at
    FROM rollouts QUALIFY n < $limit ORDER BY n"""
_PARTS = {
    "calls": (
        """call_id, recorder_id, seq, state, opened_at, dialect, stream, finish_reason, status, parent_call_id,
        break_reason, auxiliary, prompt_len, input_ids, completion_ids,
        list_transform(CAST(logprobs AS DOUBLE[]), lambda x: round(x, 4)) AS logprobs, prompt_tokens,
        completion_tokens, weight_version_min, weight_version_max, versions, ttft_s, duration_s, dropped_tools,
        error_class, c.detail AS detail""",
        "recorder_id, seq",
    ),
    "messages": ("call_id, seq, position, role, text, reasoning, tool_calls, tool_call_id", "seq, position"),
    "samples": (
        """sample_id, len(token_ids) AS tokens, CAST(list_sum(loss_mask) AS BIGINT) AS trained, is_main, weight,
        reason""",
        "sample_id",
    ),
    "refused": ("ts, what, reason, c.detail AS detail, call_ids", "ts"),
    "grades": ("ts, c.reward AS reward, details, duration_s", "ts"),
    "egress": ("ts, host, port, decision, rule, method", "ts"),
}
_VOCABULARY = """
    SELECT recorder_id, token_id, any_value(text) AS text
    FROM raw._vocab JOIN (SELECT recorder_id, any_value(hash) AS hash FROM raw.vocab GROUP BY ALL) USING (hash)
    SEMI JOIN (SELECT DISTINCT unnest(list_concat(input_ids, completion_ids)) AS token_id FROM page_calls WHERE n < ?)
        USING (token_id)
    GROUP BY ALL"""


@dataclass
class Built:
    """`rollouts` are in the page, of `total` in the run."""

    rollouts: int
    total: int


def build(con: duckdb.DuckDBPyConnection, file: BinaryIO, limit: int | None, again: str) -> Built:
    """Write the page of the one run that `con` sees. `limit`: rollouts at most, the worst first; 0 is all of them, None
    is LIMIT of them and SIZE_BYTES. `again`: the command that makes this page, named where something is left out.
    """
    known = _rows(con, _RUN)
    if len(known) != 1:
        raise UsageError("a page shows one run", hint="name a run, or `latest`")
    head = known[0]
    before, after = _frame(f"{head['run_id']} · OpenForge")
    file.write(before)
    con.execute(_CHOSEN, {"limit": {None: LIMIT, 0: 1 << 60}.get(limit, limit)})
    for name, (columns, order) in _PARTS.items():
        con.execute(
            f"""CREATE OR REPLACE TEMP TABLE page_{name} AS SELECT r.n, {columns} FROM {name} c
            JOIN (SELECT n, rollout_id, attempt FROM page_rollouts) r
                ON c.rollout_id = r.rollout_id AND c.attempt IS NOT DISTINCT FROM r.attempt
            ORDER BY n, {order}"""
        )
    writer = _Writer(file)
    rows = []
    for row in _rollouts(con):
        if limit is None and writer.size > SIZE_BYTES:
            break
        writer.put(f"r{row.pop('n')}", writer.shared(row))
        rows.append(_listed(row["rollout"]))
    (total,) = con.execute("SELECT count(*) FROM rollouts").fetchall()[0]
    head |= {"total": total, "again": again, "by_harness": _rows(con, _BY_HARNESS), "written_at": datetime.now(UTC)}
    vocabulary: dict[str, dict[str, str]] = defaultdict(dict)
    for piece in _rows(con, _VOCABULARY, [len(rows)]):
        vocabulary[piece["recorder_id"]][str(piece["token_id"])] = piece["text"]
    writer.put("vocabulary", _once_each(vocabulary))
    writer.put("list", rows)
    writer.put("run", head)
    file.write(after)
    return Built(len(rows), total)


def _rollouts(con: duckdb.DuckDBPyConnection) -> Iterator[Row]:
    """Each chosen rollout with all its parts, in order."""
    for batch in batched(_rows(con, "FROM page_rollouts ORDER BY n"), _BATCH):
        ends = [batch[0]["n"], batch[-1]["n"]]
        parts: dict[str, dict[int, list[Row]]] = {}
        for name, (_, order) in _PARTS.items():
            found = defaultdict(list)
            for row in _rows(con, f"FROM page_{name} WHERE n BETWEEN ? AND ? ORDER BY n, {order}", ends):
                found[row.pop("n")].append(row)
            parts[name] = found
        for rollout in batch:
            n = rollout["n"]
            row = {"n": n, "rollout": rollout, **{name: found.get(n, []) for name, found in parts.items()}}
            yield row | {"messages": [*_asked(con, row), *row["messages"]]}


def _asked(con: duckdb.DuckDBPyConnection, row: Row) -> list[Row]:
    """What the rollout's calls asked that the recorder could not read, as messages with their images."""
    unread = {call["call_id"] for call in row["calls"] if is_unread(call)}
    if not unread:
        return []
    rollout = row["rollout"]
    found = []
    for call_id, said in asked_of(con, rollout["rollout_id"], rollout["attempt"], unread).items():
        for one, message in zip(said, rows_of(said), strict=True):
            told = zip(message["images"], map(_url, one.images), strict=True)
            found.append({**message, "call_id": call_id, "images": [{"told": line, "url": url} for line, url in told]})
    return found


def _url(image: Image) -> str | None:
    """None when the page does not hold it."""
    if image.fault or len(image.data) > IMAGE_BYTES:
        return None
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"


def _listed(rollout: Row) -> Row:
    """What the list shows and filters by; `fault` as `openforge rollouts --failed` has it."""
    reward, state = rollout["reward"], rollout["state"]
    fault = state not in ("done", *UNDER_WAY) or (reward is not None and reward <= 0)
    return {**rollout, "detail": (rollout["detail"] or "")[:200], "fault": fault}


def _once_each(vocabulary: dict[str, dict[str, str]]) -> Row:
    """`{"of": {recorder: number}, "texts": [{id: text} …]}`: recorders of one policy share one table."""
    texts: list[dict[str, str]] = []
    of = {}
    for recorder_id, pieces in vocabulary.items():
        if pieces not in texts:
            texts.append(pieces)
        of[recorder_id] = texts.index(pieces)
    return {"of": of, "texts": texts}


@dataclass
class _Writer:
    """Puts elements into the page; `size` in bytes so far."""

    file: BinaryIO
    size: int = 0
    known: dict[bytes, int] = field(default_factory=dict)

    def put(self, name: str, value: object) -> None:
        self._put(name, _json(value))

    def shared(self, row: Row) -> Row:
        """`row` with what is long replaced by `{"$": number}` of the element that holds it."""
        for part, names in (("messages", ("text", "reasoning")), ("calls", ("input_ids",))):
            for one in row[part]:
                for name in names:
                    one[name] = self._share(one[name])
        for message in row["messages"]:
            for image in message.get("images", ()):
                image["url"] = self._share(image["url"])
        return row

    def _share(self, value: Any) -> Any:
        if not value:
            return value
        text = _json(value)
        if len(text) < _SHARED:
            return value
        key = blake2b(text, digest_size=16).digest()
        if key not in self.known:
            self.known[key] = len(self.known)
            self._put(f"s{self.known[key]}", text)
        return {"$": self.known[key]}

    def _put(self, name: str, text: bytes) -> None:
        self.size += self.file.write(b'<script type="application/json" id="%s">%s</script>\n' % (name.encode(), text))


def _json(value: object) -> bytes:
    text = orjson.dumps(value)
    for sign, escaped in _ESCAPES.items():
        text = text.replace(sign, escaped)
    return text


def _frame(title: str) -> tuple[bytes, bytes]:
    """The page before and after its data."""
    css, script = (_FOLDER.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(css)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _FOLDER.joinpath("page.html").read_text(encoding="utf-8")
    for name, text in (("POLICY", policy), ("TITLE", escape(title)), ("CSS", css), ("SCRIPT", script)):
        page = page.replace(f"{{{{{name}}}}}", text)
    before, after = page.split("{{DATA}}")
    return before.encode(), after.encode()


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _rows(con: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> list[Row]:
    return [dict(row) for row in con.sql(sql, params=parameters).to_arrow_table().to_pylist()]
