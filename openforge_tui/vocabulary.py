"""Whether ids that were recorded mean the same to a model: compares vocabularies, by hash and then piece by piece.

A tokenizer file that was only written anew (by transformers, for a checkpoint) has another hash and the same ids.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from openforge.errors import ConfigError
from proxy_addons.render.tok import Tok


class Limits(NamedTuple):
    """What a model takes: ids below `vocab_size`, rows of at most `max_length` tokens."""

    vocab_size: int
    max_length: int


def model_limits(model_dir: Path) -> Limits:
    """Read from config.json; raises ConfigError when it does not say."""
    config: dict[str, Any] = orjson.loads((model_dir / "config.json").read_bytes())
    text = config.get("text_config") or config  # models that also see keep their language part apart
    vocab_size, max_length = text.get("vocab_size"), text.get("max_position_embeddings")
    if not (isinstance(vocab_size, int) and isinstance(max_length, int)):
        raise ConfigError(f"{model_dir / 'config.json'} does not say vocab_size and max_position_embeddings")
    return Limits(vocab_size, max_length)


def same_vocabularies(store_root: Path, hashes: set[str], model_dir: Path) -> frozenset[str]:
    """Those of `hashes` (recorded vocabularies) whose every id has the text that it has in the model's tokenizer.

    Raises ConfigError when the model folder has no tokenizer.json.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{model_dir} has no tokenizer.json", hint="a policy is a folder with model and tokenizer")
    tok = Tok(path, "")
    same = hashes & {blake2b(tok.full.to_str().encode(), digest_size=16).hexdigest()}
    for other in hashes - same:
        recorded = store_root / "vocab" / f"{other}.jsonl"
        if recorded.is_file() and _texts(recorded) == _model_texts(tok):
            same |= {other}
    return frozenset(same)


def _texts(path: Path) -> list[str]:
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [line["text"] for line in lines]


def _model_texts(tok: Tok) -> list[str]:
    texts: list[str] = tok.full.decode_batch([[token] for token in range(tok.size)], skip_special_tokens=False)
    return texts
