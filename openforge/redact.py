"""Hiding secrets before anything is written down: journal, logs, errors, `config show`.

Three ways to know a secret: it was given (the run's own keys and tokens), it looks like one (key formats of providers,
bearer tokens, private keys, passwords in addresses), or it lies under a name that says so. It errs towards hiding in
text that people read. It is never used on token ids or on text that will be trained on: what the policy saw stays.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "[hidden]"
_MIN_LENGTH = 6  # shorter values would hide ordinary words
_MIN_BARE_TOKEN = 16  # logprobs in model answers name each piece of text `token`

_SHAPES = re.compile(
    r"""
      \b(?:sk|pk|rk|xai|gsk|r8|hf|nvapi|whsec|glpat|npm|pypi|dop_v1|tvly|fw|csk|pplx)[-_][A-Za-z0-9_\-]{16,}
    | \b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_\-]{30,}
    | \bya29\.[A-Za-z0-9_\-.]{20,}
    | \beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*          # JSON web token
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?i:(?<=authorization:\ bearer\ )|(?<=authorization:\ basic\ ))[^\s"']+
    | (?i:(?<=\bbearer\ )|(?<=\bbasic\ ))(?=\S*[\d=])[A-Za-z0-9._~+/\-]{8,}=*  # but not "basic training"
    | (?<=://)[^\s/:@"']*:[^\s/@"']+(?=@)                                     # user:password@host
    """,
    re.VERBOSE,
)
_ASSIGNED = re.compile(
    r"""(?ix)
    \b([A-Z0-9_\-]*(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|password|passwd|access[_-]?token|auth[_-]?token
      |refresh[_-]?token))
    (["']?\s*[:=]\s*["']?)
    (?!\[hidden\])([^\s"',;&}]{6,})
    """
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:api_?key|authorization|password|passwd|secret|secret_?key|private_?key|access_?key|credentials?"
    r"|(?:access|auth|refresh|session|bearer|control|id)_?token|cookie)$"
)
_ENV_NAME = re.compile(r"[A-Z0-9_]*(?:_KEY|_TOKEN|_SECRET|_PASSWORD)")  # OPENAI_API_KEY; never eos_token
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    """Whether a key, header or variable of this name holds a secret (`max_tokens` and `api_key_env` do not)."""
    plain = _CAMEL.sub("_", name).lower().replace("-", "_")
    return bool(_SECRET_NAME.search(plain)) or bool(_ENV_NAME.fullmatch(name))


class Redactor:
    """Knows the secrets of one run; `text` and `tree` hide them and everything that looks like one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {form for secret in secrets if len(secret) >= _MIN_LENGTH for form in (secret, quote(secret, safe=""))}
        longest_first = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None

    def text(self, text: str) -> str:
        """`text` with each secret replaced by `[hidden]`."""
        if self._known:
            text = self._known.sub(HIDDEN, text)
        text = _SHAPES.sub(HIDDEN, text)
        return _ASSIGNED.sub(rf"\1\2{HIDDEN}", text)

    def tree(self, value: Any) -> Any:
        """A copy of nested dicts, lists and strings without secrets; other values are returned as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self._name(name): self._member(name, item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        return value

    def _name(self, name: Any) -> Any:
        return self.text(name) if isinstance(name, str) else name

    def _member(self, name: Any, item: Any) -> Any:
        """Strings under a secret name; a dict there (a JSON schema has properties named so) is looked into instead."""
        if not isinstance(name, str):
            return self.tree(item)
        if is_secret_name(name):
            if isinstance(item, str):
                return HIDDEN if item else item
            if isinstance(item, list | tuple):
                return [HIDDEN if isinstance(part, str) else self.tree(part) for part in item]
        if name == "token" and isinstance(item, str) and len(item) >= _MIN_BARE_TOKEN and not re.search(r"\s", item):
            return HIDDEN
        return self.tree(item)
