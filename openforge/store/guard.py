"""Whether a person's SQL may run: one statement, and one that only reads the views. Text in, refusal out.

This is the first of two walls; the second is the locked DuckDB of jail.py, which cannot open a file that is not a
segment. Both are needed: DuckDB 2.0 calls `with x as (copy … to 'file') select 1` a SELECT and runs it, also in a
read-only transaction, and some table functions take addresses in memory.
"""

import difflib
import re
from collections.abc import Iterable

import duckdb

from openforge.errors import UsageError
from openforge.store.schema import VIEWS

HINT = "`openforge sql` lists what you can select from"
_TYPES = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
_STARTS = frozenset(
    ("(", "select", "with", "from", "values", "table", "describe", "desc", "show", "summarize", "pivot", "unpivot")
)
# What may not stand where a statement begins: at the start, or after a parenthesis as in `with x as (copy …)`.
_WRITES = frozenset(
    name
    for line in (
        "alter analyze attach call checkpoint copy create deallocate delete detach drop execute export grant import",
        "insert install load merge pragma prepare reset revoke set truncate update vacuum",
    )
    for name in line.split()
)
# Table functions that neither read files nor take addresses; every other one is refused.
_TABLE_FUNCTIONS = frozenset(
    name
    for line in (
        "unnest range generate_series repeat repeat_row histogram histogram_values json_each json_tree summary",
        "duckdb_columns duckdb_keywords duckdb_tables duckdb_types duckdb_views pragma_table_info",
    )
    for name in line.split()
)
# Scalar functions that tell about the machine or leave something behind, and a view that has the settings as well.
_SCALARS = frozenset(("current_setting", "currval", "getenv", "getvariable", "nextval", "setval", "write_log"))
_SETTINGS = "pg_settings"


def check(sql: str, table_functions: Iterable[str]) -> None:
    """Raise UsageError unless `sql` is one statement that only reads. `table_functions`: every one DuckDB knows."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise explain(error) from None
    if len(statements) != 1:
        raise UsageError(f"expected one SQL statement, got {len(statements)}", hint=HINT)
    words = _words(sql)
    while words and words[0] == "explain":
        words = words[1:]
        while words and words[0] in ("analyze", "verbose"):
            words = words[1:]
        if words and words[0] == "(" and words[1:2] and words[1] in ("format", "analyze"):
            words = words[words.index(")") + 1 :] if ")" in words else words
    if not words or words[0] not in _STARTS or not _may_type(statements[0].type, words[0]):
        raise UsageError(
            "only statements that read may run here: SELECT, WITH, DESCRIBE, SHOW, SUMMARIZE, PIVOT, EXPLAIN", hint=HINT
        )
    forbidden = {name.lower() for name in table_functions} - _TABLE_FUNCTIONS | _SCALARS
    for before, word, after in zip(["(", *words], words, [*words[1:], ""], strict=False):
        if before == "(" and word in _WRITES and re.match(r"[\w\"'(]", after):
            raise UsageError(
                f"{word.upper()} may not run here: the store is only read", hint=f'a column of that name: "{word}"'
            )
        name = word.strip('"').replace('""', '"').lower()
        if after == "(" and name in forbidden:
            raise UsageError(f"the function {word} may not be used here: only the views are read", hint=HINT)
        if name == _SETTINGS:
            raise UsageError(f"{word} may not be read here: only the views are", hint=HINT)


def _may_type(type_: duckdb.StatementType, first: str) -> bool:
    return type_ in _TYPES or (type_ == duckdb.StatementType.MULTI and first in ("pivot", "with", "from", "select"))


def _words(sql: str) -> list[str]:
    """The tokens of `sql` without comments: words in lower case, quoted names as they are, strings as `'`."""
    tokens = duckdb.tokenize(sql)
    encoded = sql.encode()  # offsets count bytes
    ends = [start for start, _ in tokens[1:]] + [len(encoded)]
    words = []
    for (start, kind), end in zip(tokens, ends, strict=True):
        text = encoded[start:end].decode(errors="replace").strip()
        if kind == duckdb.token_type.comment:
            continue
        if kind == duckdb.token_type.string_const:
            words.append("'")
        elif text.startswith('"'):
            words.append(text)
        else:
            words += re.findall(r"\w+|[^\w\s]", text.lower())
    return words


def explain(error: Exception) -> UsageError:
    """DuckDB's error as ours: what is wrong, where, and the nearest name."""
    text = str(error).strip()
    first, _, rest = text.partition("\n")
    first = re.sub(r"^[A-Za-z ]+ Error: ", "", first)
    caret = re.search(r"LINE \d+: .*\n.*\^", rest)
    kind = f"{type(error).__name__.removesuffix('Exception').lower()} " if isinstance(error, duckdb.Error) else ""
    summary = f"{kind}error in SQL: {first}"
    known = [view.name for view in VIEWS] if "Table with name" in text else _columns()
    missing = re.search(r"Table with name (\S+) does not exist|column \"([^\"]+)\" not found|named \"([^\"]+)\"", text)
    hint = HINT
    if missing:
        wanted = next(filter(None, missing.groups()))
        near = difflib.get_close_matches(wanted.lower(), known, n=1, cutoff=0.5)
        there = re.search(r"Candidate bindings: (.+)", text)  # DuckDB's own, by what the query selects from
        perhaps = f"perhaps {there[1].replace('"', '')}; {HINT}" if there else HINT
        hint = f"did you mean {near[0]}? {HINT}" if near else perhaps
    elif "must appear in the GROUP BY" in text:
        hint = "end the query with GROUP BY ALL: it groups by every column that is not aggregated"
    return UsageError(summary + (f"\n{caret[0]}" if caret else ""), hint=hint)


def _columns() -> list[str]:
    return sorted({column.name for view in VIEWS for column in view.columns})
