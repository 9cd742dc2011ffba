"""Cuts the real tokenizer, and the recorded rows, down to what a tiny model needs; no id changes its meaning.

Tokenizer: byte-pair encoding applies the lowest-ranked merge that fits, so a text all of whose merges are kept splits
exactly as with the whole tokenizer; any other text still encodes, into shorter pieces. Ids are renumbered. Rows: with
a sliding window W in each of L layers nothing more than L·(W-1) tokens before a position can reach it (and RoPE is
relative), so what lies further before the first learned token is left out. Pure data and JSON; no torch.
"""

import json
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from openforge.errors import OpenForgeError

FIRST_MERGES = 2_000
_NEVER = 1 << 30


class Row(NamedTuple):
    """One training row; `loss_mask[i]` is 1 where `input_ids[i]` was said by the teacher."""

    input_ids: list[int]
    loss_mask: list[int]


def cut_row(row: Row, layers: int, window: int) -> Row:
    """Drop the part of the prompt that the first learned token cannot see. Raises ValueError when none is learned."""
    reach = layers * (window - 1)
    start = max(0, row.loss_mask.index(1) - 1 - reach)
    return Row(row.input_ids[start:], row.loss_mask[start:])


def blur(row: Row, rate: float, plain_ids: int, pick: random.Random) -> Row:
    """The row with a share `rate` of what is not learned replaced by any of the ids below `plain_ids`.

    What varies from day to day and machine to machine (dates, paths, chunk ids) must not matter to the model.
    """
    return Row(
        [
            pick.randrange(plain_ids) if not learned and pick.random() < rate else token
            for token, learned in zip(row.input_ids, row.loss_mask, strict=True)
        ],
        row.loss_mask,
    )


def cut_tokenizer(
    source: Path, used_ids: Iterable[int], dest: Path, first_merges: int = FIRST_MERGES
) -> dict[int, int]:
    """Write the cut of the tokenizer in `source` to `dest`; the result maps each kept id to its new one.

    Kept: the bytes, the first merges, every merge that made one of `used_ids`, and all added (special) tokens.
    """
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    merges = [_pair(merge) for merge in model["merges"]]
    kept = [merges[rank] for rank in _kept_ranks(model["vocab"], merges, set(used_ids), first_merges)]

    by_id = {number: piece for piece, number in model["vocab"].items()}
    pieces = list(dict.fromkeys([by_id[number] for number in range(256)] + [left + right for left, right in kept]))
    new_ids = {model["vocab"][piece]: number for number, piece in enumerate(pieces)}
    for token in tokenizer["added_tokens"]:
        new_ids[token["id"]] = token["id"] = len(new_ids)
    model["vocab"] = {piece: number for number, piece in enumerate(pieces)}
    model["merges"] = [list(pair) for pair in kept]

    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {str(new_ids[int(number)]): token for number, token in added.items()}
    dest.mkdir(parents=True, exist_ok=True)
    for name, data in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (dest / name).write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    shutil.copyfile(source / "chat_template.jinja", dest / "chat_template.jinja")
    return new_ids


def renumber(row: Row, new_ids: dict[int, int]) -> Row:
    """The row in the ids of the cut. Raises OpenForgeError for an id that the cut was not told of."""
    missing = sorted(set(row.input_ids) - new_ids.keys())
    if missing:
        raise OpenForgeError(f"the cut tokenizer lacks ids that the recorded rows use: {missing[:5]}")
    return Row([new_ids[number] for number in row.input_ids], list(row.loss_mask))


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _kept_ranks(
    vocab: dict[str, int], merges: Sequence[tuple[str, str]], used_ids: set[int], first_merges: int
) -> list[int]:
    rank_of = {pair: rank for rank, pair in enumerate(merges)}
    kept = set(range(min(first_merges, len(merges))))
    for piece, number in vocab.items():
        if number in used_ids:
            kept.update(_applied(piece, rank_of))
    return sorted(kept)


def _applied(piece: str, rank_of: dict[tuple[str, str], int]) -> Iterable[int]:
    """Ranks of the merges that make `piece` from its bytes, in the order in which they are applied."""
    parts = list(piece)
    while len(parts) > 1:
        rank, at = min((rank_of.get((parts[i], parts[i + 1]), _NEVER), i) for i in range(len(parts) - 1))
        if rank == _NEVER:
            raise OpenForgeError(f"no merges of the tokenizer make its own piece {piece!r}")
        yield rank
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
