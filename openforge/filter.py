"""Filters as a person types them: behind `/` in the app and in `--filter`. Pure: text in, a test of rows out.

fix-mean            any cell matches this regular expression, whatever its case
!fix-mean           no cell does
-f fxmn             the letters of a cell hold these ones in this order
-l state=failed,reward<1    columns, all of them true: = != < <= > >=
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from openforge.errors import UsageError

type Test = Callable[[Mapping[str, Any]], bool]

_TERM = re.compile(r"\s*([a-z_]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
HINT = "TEXT, !TEXT, -f LETTERS, or -l COLUMN=VALUE,COLUMN<VALUE"


def parse_filter(text: str) -> Test:
    """The test that `text` names; empty text lets every row through. Raises UsageError."""
    text = text.strip()
    if not text:
        return lambda row: True
    if text.startswith("!"):
        inner = parse_filter(text[1:])
        return (lambda row: not inner(row)) if text[1:].strip() else (lambda row: True)
    option, _, rest = text.partition(" ")
    if option == "-l":
        return _labels(rest)
    if option == "-f":
        return _fuzzy(rest.strip())
    return _matching(text)


def _matching(pattern: str) -> Test:
    try:
        found = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"filter {pattern!r}: {error}", hint=f"a regular expression, or {HINT}") from None
    return lambda row: any(found.search(str(value)) for value in row.values() if value is not None)


def _fuzzy(letters: str) -> Test:
    found = re.compile(".*?".join(map(re.escape, letters)), re.IGNORECASE | re.DOTALL)
    return lambda row: any(found.search(str(value)) for value in row.values() if value is not None)


def _labels(text: str) -> Test:
    terms = []
    for part in filter(str.strip, text.split(",")):
        match = _TERM.fullmatch(part)
        if match is None:
            raise UsageError(f"filter term {part.strip()!r} is no COLUMN=VALUE", hint=HINT)
        terms.append((match[1], match[2], match[3]))
    return lambda row: all(_holds(row, *term) for term in terms)


def _holds(row: Mapping[str, Any], column: str, operator: str, wanted: str) -> bool:
    if column not in row:
        raise UsageError(f"there is no column {column!r}", hint=f"columns: {', '.join(row)}")
    value = row[column]
    if operator in ("=", "!="):
        return _same(value, wanted) is (operator == "=")
    try:
        return value is not None and _COMPARE[operator](float(value), float(wanted))
    except (TypeError, ValueError):
        return False


def _same(value: Any, wanted: str) -> bool:
    if value is None:
        return wanted == ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) == float(wanted)
        except ValueError:
            return False
    return str(value).lower() == wanted.lower()
