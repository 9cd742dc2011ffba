"""What may come next in a query: views and columns as they are declared, SQL's words, a few functions.

Pure: the text before the cursor and the whole text in, candidates out. It reads words, not a grammar: a query is seldom
valid while it is being typed.
"""

import re
from typing import NamedTuple

from openforge.store.schema import BY_NAME, VIEWS

_KEYWORDS = (
    "SELECT FROM WHERE GROUP BY ORDER BY HAVING LIMIT JOIN LEFT JOIN FULL JOIN USING ON AS AND OR NOT IN IS NULL "
    "DISTINCT CASE WHEN THEN ELSE END WITH UNION ALL UNNEST FILTER OVER PARTITION QUALIFY WINDOW BETWEEN LIKE ILIKE "
    "EXISTS DESC ASC NULLS LAST DESCRIBE SUMMARIZE PIVOT EXCLUDE OFFSET EXPLAIN CAST INTERVAL"
)
KEYWORDS = tuple(dict.fromkeys(_KEYWORDS.replace("GROUP BY", "GROUP_BY").replace("ORDER BY", "ORDER_BY").split()))
_FUNCTIONS = (
    "count sum avg min max median quantile_cont stddev any_value arg_min arg_max list histogram bool_and bool_or "
    "coalesce nullif round abs exp ln len length lower upper left right replace contains starts_with concat "
    "regexp_matches regexp_extract regexp_replace string_split date_trunc date_diff epoch strftime row_number rank lag "
    "lead list_avg list_sum list_unique list_transform list_filter unnest generate_subscripts range json_extract "
    "json_extract_string array_to_string"
)
FUNCTIONS = tuple(_FUNCTIONS.split())
_WITH = re.compile(r"(?:\bwith|,)\s+(?:recursive\s+)?([a-z_]\w*)\s+as\s*\(", re.IGNORECASE)
_WORD = re.compile(r"[\w.\"]*$")
_AFTER_SOURCE = re.compile(r"\b(?:from|join|describe|summarize)\s+$", re.IGNORECASE)
_NO_ALIAS = {word.lower().partition("_")[0] for word in KEYWORDS} | {
    "right",
    "inner",
    "cross",
    "natural",
    "semi",
    "anti",
    "asof",
}
_SOURCE = re.compile(
    rf"\b(?:from|join)\s+([a-z_]\w*)(?:\s+(?:as\s+)?(?!(?:{'|'.join(_NO_ALIAS)})\b)([a-z_]\w*))?", re.IGNORECASE
)
_MOST = 40


class Candidate(NamedTuple):
    """`text` takes the place of the word before the cursor; `about` says what it is."""

    text: str
    about: str


def complete(before: str, text: str) -> list[Candidate]:
    """Candidates for the word that ends `before` (the part of `text` up to the cursor), the likeliest first.

    Nothing for an empty word, or for one that is whole already.
    """
    match = _WORD.search(before)
    word = match[0] if match else ""
    if not word or word[0].isdigit() or _in_quotes(before[: len(before) - len(word)]):
        return []
    if "." in word:
        return _members(word, text)
    if _AFTER_SOURCE.search(before[: len(before) - len(word)]):
        found = [Candidate(name, "of this query") for name in _WITH.findall(text)]
        return _matching(word, [*found, *(Candidate(view.name, _first_sentence(view.doc)) for view in VIEWS)])
    return _matching(word, [*_columns(text), *_functions(), *_keywords(word), *_sources(text)])


def _matching(word: str, candidates: list[Candidate]) -> list[Candidate]:
    lower = word.lower()
    found = {c.text: c for c in reversed(candidates) if c.text.lower().startswith(lower)}
    if any(c.text.lower().removesuffix("(") == lower for c in found.values()):
        return []
    return list(reversed(found.values()))[:_MOST]


def _members(word: str, text: str) -> list[Candidate]:
    """`alias.` or `view.`: the columns of what it stands for."""
    owner, _, typed = word.rpartition(".")
    view = BY_NAME.get(_aliases(text).get(owner.lower(), owner.lower()))
    if view is None:
        return []
    found = _matching(typed, [Candidate(column.name, column.type) for column in view.columns])
    return [Candidate(f"{owner}.{one.text}", one.about) for one in found]


def _columns(text: str) -> list[Candidate]:
    """Of the views that the query names; of all while it names none."""
    named = [BY_NAME[name] for name in dict.fromkeys(_named(text)) if name in BY_NAME]
    found: dict[str, list[str]] = {}
    for view in named or VIEWS:
        for column in view.columns:
            found.setdefault(column.name, []).append(view.name)
    return [
        Candidate(name, f"column of {', '.join(views[:2])}{' …' if views[2:] else ''}") for name, views in found.items()
    ]


def _functions() -> list[Candidate]:
    return [Candidate(f"{name}(", "function") for name in FUNCTIONS]


def _keywords(typed: str) -> list[Candidate]:
    """In the case in which one has begun to type."""
    words = (word.replace("_", " ") for word in KEYWORDS)
    return [Candidate(word.lower() if typed.islower() else word, "") for word in words]


def _sources(text: str) -> list[Candidate]:
    """Views and aliases, to go on with a dot."""
    aliases = [Candidate(alias, f"is {name}") for alias, name in _aliases(text).items() if alias != name]
    return [*aliases, *(Candidate(view.name, "view") for view in VIEWS)]


def _named(text: str) -> list[str]:
    return [name.lower() for name, _ in _SOURCE.findall(text)]


def _aliases(text: str) -> dict[str, str]:
    """What each name stands for, the views' own names included."""
    found: dict[str, str] = {}
    for name, alias in _SOURCE.findall(text):
        found[name.lower()] = name.lower()
        if alias:
            found[alias.lower()] = name.lower()
    return found


def _in_quotes(before: str) -> bool:
    """Whether the cursor is in a string or a comment."""
    line = before.rpartition("\n")[2]
    return before.count("'") % 2 == 1 or "--" in line


def _first_sentence(doc: str) -> str:
    return re.split(r"[.;:]", doc, maxsplit=1)[0]
