"""A tokenizer on `tokenizers` alone, in which special tokens quoted by the outside world stay text.

A renderer encodes scaffold and content in one pass, so that `<|im_end|>` inside a tool result would become the control
token and end the turn. `guard` puts a noncharacter after the first character of every such literal in outside text;
`encode` takes the literals that are still whole (the renderer's own) as control tokens, removes the mark, and encodes
what is between them with a copy of the tokenizer that has no added tokens. facts: Qwen3's `<tool_call>` is an added
token with `special: false`, so the tokenizer's own switch for this does not help.
"""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from openforge.errors import ConfigError

MARK = "\ufdd0"  # Unicode noncharacters: never text
SENTINEL = "\ufdd1"
_LONG = 2000  # characters; above, the call that frees the interpreter lock is worth its overhead


class Tok:
    """The tokenizer of a model folder, with what `renderers` asks of one."""

    unk_token_id: int | None = None

    def __init__(self, path: Path, eos_token: str) -> None:
        spec = json.loads(path.read_text())
        if any(token.get("normalized") for token in spec.get("added_tokens", ())) and _folds(spec.get("normalizer")):
            raise ConfigError(f"{path}: quoted special tokens cannot be told from real ones under this normalizer")
        self.full: Tokenizer = Tokenizer.from_str(json.dumps(spec))
        self.added: dict[str, int] = {token["content"]: token["id"] for token in spec.get("added_tokens", ())}
        spec["added_tokens"] = []
        spec["post_processor"] = None
        self.plain: Tokenizer = Tokenizer.from_str(json.dumps(spec))
        literals = sorted(self.added, key=len, reverse=True)
        self._literal = re.compile("|".join(map(re.escape, literals)) or r"(?!)")
        self._outside = re.compile(f"[{MARK}{SENTINEL}\ud800-\udfff]")
        self.eos_token = eos_token
        self.eos_token_id: int = self.full.token_to_id(eos_token)
        self.name_or_path = path.parent.name
        self._short = lru_cache(maxsize=4096)(self._encode_short)

    def guard(self, text: str) -> str:
        """Outside text, safe to be put between the renderer's own control tokens."""
        if self._outside.search(text):
            text = self._outside.sub("\ufffd", text)
        return self._literal.sub(lambda found: found[0][0] + MARK + found[0][1:], text)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of scaffold and guarded text. Long texts free the interpreter lock while they are encoded."""
        if len(text) <= 64 and MARK not in text:
            return list(self._short(text))  # the scaffold: the same few strings again and again
        if MARK not in text:
            return _ids(self.full, text)
        out: list[int] = []
        at = 0
        for found in self._literal.finditer(text):
            out += _ids(self.plain, text[at : found.start()].replace(MARK, ""))
            out.append(self.added[found[0]])
            at = found.end()
        return out + _ids(self.plain, text[at:].replace(MARK, ""))

    def decode(self, ids: int | list[int], skip_special_tokens: bool = False, **_: Any) -> str:
        return str(self.full.decode([ids] if isinstance(ids, int) else ids, skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        if isinstance(tokens, str):
            return self.full.token_to_id(tokens)
        return [self.full.token_to_id(token) for token in tokens]

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return int(max(self.full.get_vocab(with_added_tokens=True).values())) + 1

    def _encode_short(self, text: str) -> tuple[int, ...]:
        return tuple(_ids(self.full, text))


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if len(text) < _LONG:
        return list(tokenizer.encode(text, add_special_tokens=False).ids) if text else []
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _folds(normalizer: dict[str, Any] | None) -> bool:
    """Whether a normalizer can turn other characters into those of a literal (full-width brackets, capitals …)."""
    if normalizer is None:
        return False
    if normalizer.get("type") == "Sequence":
        return any(_folds(inner) for inner in normalizer.get("normalizers", ()))
    return normalizer.get("type") not in ("NFC", "NFD", "Prepend")
