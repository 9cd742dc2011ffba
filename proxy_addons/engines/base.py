"""What an engine gives in train mode: ids in, ids out, with the logprob and the weight version of each.

An answer is taken whole or not at all: `check` refuses, with a named class, whatever could not be trained on exactly.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from openforge.errors import InfraError
from openforge.tokens.graph import Ids, Logprobs, Versions

_ROUNDING = 1e-4  # x - logsumexp(x) may come out this much above 0 in float32
_FLOOR = -9999.0  # what vLLM writes for minus infinity


class EngineError(InfraError):
    """The engine gave no usable answer. `error_class` is counted and journalled; trying again may help."""

    def __init__(self, error_class: str, summary: str) -> None:
        super().__init__(summary)
        self.error_class = error_class


class Generation(NamedTuple):
    """One sampled answer. `versions` are (offset, weight version from there on); `ttft_s` None when it was not seen."""

    ids: Ids
    logprobs: Logprobs
    finish: Literal["stop", "length"]
    versions: Versions
    ttft_s: float | None = None


class Piece(NamedTuple):
    """What one request to an engine brought; `abort` means it was stopped in the middle and may be continued.
    `versions` are (offset in it, weight version from there on)."""

    ids: Ids
    logprobs: Logprobs
    finish: Literal["stop", "length", "abort"]
    versions: Versions


@dataclass(frozen=True, slots=True)
class EngineInfo:
    max_model_len: int | None
    weight_version: str


class Engine(Protocol):
    """A policy that samples. `prompt_json` is the prompt's ids as the inside of a JSON list."""

    async def generate(
        self, prompt_json: bytes, prompt_len: int, max_tokens: int, session_id: str, call_id: str
    ) -> Generation: ...

    async def close(self) -> None: ...


def check(piece: Piece, vocab_size: int, max_tokens: int) -> Piece:
    """The piece itself, or EngineError: lengths, ids in the vocabulary, logprobs that are logprobs, and for each id its
    weight version."""
    if len(piece.ids) != len(piece.logprobs):
        raise EngineError("logprob_len_mismatch", f"{len(piece.ids)} ids but {len(piece.logprobs)} logprobs")
    if not piece.ids and piece.finish != "abort":
        raise EngineError("no_sampled_tokens", "the engine answered without a single token")
    if len(piece.ids) > max_tokens:
        raise EngineError("too_many_tokens", f"{len(piece.ids)} ids where {max_tokens} were asked for")
    if piece.ids and (min(piece.ids) < 0 or max(piece.ids) >= vocab_size):
        raise EngineError("token_out_of_vocab", f"an id outside 0..{vocab_size - 1}")
    if not all(_FLOOR < value <= _ROUNDING for value in piece.logprobs):  # NaN compares false
        raise EngineError("bad_logprob", "a logprob that is NaN, infinite or positive")
    if piece.ids:
        _check_versions(piece.versions, len(piece.ids))
    return piece


def _check_versions(versions: Versions, length: int) -> None:
    if not versions or versions[0][0] > 0 or not all(name for _, name in versions):
        raise EngineError("version_missing", "ids that no weight version is given for")
    offsets = [offset for offset, _ in versions]
    if offsets[0] < 0 or offsets[-1] >= length or any(one >= next_one for one, next_one in pairwise(offsets)):
        raise EngineError("bad_versions", f"weight versions at {offsets} in an answer of {length} ids")


def logprob_array(values: Sequence[float | None]) -> Logprobs:
    """Logprobs as they came; a null becomes NaN, which `check` refuses, and rounding above 0 becomes 0."""
    return array("f", [math.nan if value is None else 0.0 if 0 < value <= _ROUNDING else value for value in values])
