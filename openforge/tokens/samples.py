"""From the tree of a rollout to the rows a trainer sees.

One row for each path to a leaf: ids, a mask that is 1 on sampled ids only, their logprobs, weight versions. A sampled
id that lies on several paths trains in exactly one of them. The weights of the rows of a rollout sum to 1, in
proportion to the ids each trains, so that a fork changes no token's share of the loss. Nothing is padded, truncated or
guessed: a row that cannot be exact is refused with its reason.
"""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from openforge.ids import CallId
from openforge.tokens.breaks import Break
from openforge.tokens.graph import Graph, Ids, Logprobs, Turn, Versions, ancestors, path

_ROUNDING = 1e-4  # x - logsumexp(x) may come out this much above 0 in float32
_FLOOR = -9999.0  # what vLLM writes for minus infinity
_UNKNOWN = array("f", [math.nan])
_ZERO_RUN = 16  # a peaked policy may answer a few ids with logprob exactly 0; that many in a row were made up


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row; `token_ids`, `loss_mask` and `logprobs` have the same length.

    `logprobs` is NaN where nothing was sampled (never 0: that would be a claim); None when the engine gave none.
    `versions` are (position in the row, weight version from there on), sampled ids only.
    """

    sample_id: str
    call_ids: tuple[CallId, ...]
    token_ids: Ids
    loss_mask: bytes
    logprobs: Logprobs | None
    versions: Versions
    is_main: bool
    weight: float
    reason: str


class Refused(NamedTuple):
    """A path that gives no row. `call_ids` is the whole path, `reason` names what is wrong with it."""

    call_ids: tuple[CallId, ...]
    reason: str


def build_samples(graph: Graph, *, vocab_size: int | None) -> tuple[list[Sample], list[Refused]]:
    """The rows of a rollout and what was refused.

    The main row is last: the path with most sampled ids, the latest of equals. `vocab_size=None` only refuses negative
    ids. Auxiliary calls train nothing.
    """
    kept: list[list[Turn]] = []
    refused: list[Refused] = []
    for leaf in trained_leaves(graph):
        turns = path(leaf)
        fault = find_fault(turns, vocab_size)
        if fault:
            refused.append(_refuse(turns, fault))
        else:
            kept.append(turns)
    if not kept:
        return [], refused
    order = {turn: n for n, turn in enumerate(graph.turns)}
    main = max(kept, key=lambda turns: (_sampled(turns), order[turns[-1]]))
    claimed: set[Turn] = set()
    rows: list[tuple[list[Turn], set[Turn]]] = []
    for turns in [main, *(other for other in kept if other is not main)]:
        mine = {turn for turn in turns if not turn.auxiliary and turn not in claimed}
        claimed |= mine
        if _sampled(mine):
            rows.append((turns, mine))
        else:
            refused.append(_refuse(turns, "no_sampled_tokens"))
    total = sum(_sampled(mine) for _, mine in rows)
    samples = [
        _sample(turns, mine, turns is main, _sampled(mine) / total, _reason(turns, main, order)) for turns, mine in rows
    ]
    return samples[1:] + samples[:1], refused


def trained_leaves(graph: Graph) -> list[Turn]:
    """Leaves of the tree without its auxiliary calls (titles, quota checks), in the order they were committed."""
    inner: set[Turn] = set()
    for turn in graph.turns:
        if turn.auxiliary:
            continue
        for at in ancestors(turn.parent):
            if at in inner:
                break
            inner.add(at)
    return [turn for turn in graph.turns if not turn.auxiliary and turn not in inner]


def find_fault(turns: list[Turn], vocab_size: int | None) -> str:
    """Why this path cannot be an exact row; "" when it can."""
    if not turns[0].input_ids:
        return "empty_prompt_ids"
    for turn in turns:
        for ids in (turn.input_ids, turn.answer_ids):
            if ids and (min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size)):
                return "token_out_of_vocab"
    trained = [turn for turn in turns if not turn.auxiliary and turn.answer_ids]
    if not trained:
        return "no_sampled_tokens"
    for turn in turns:
        if turn.logprobs is not None and len(turn.logprobs) != len(turn.answer_ids):
            return "logprob_len_mismatch"
    with_logprobs = [turn.logprobs for turn in trained if turn.logprobs is not None]
    if 0 < len(with_logprobs) < len(trained):
        return "logprobs_missing"
    for logprobs in with_logprobs:
        if not all(_FLOOR < value <= _ROUNDING for value in logprobs):  # NaN compares false
            return "bad_logprob"
        if len(logprobs) >= _ZERO_RUN and not any(logprobs):
            return "bad_logprob"
    if with_logprobs and not any(any(logprobs) for logprobs in with_logprobs):
        return "bad_logprob"
    return ""


def _refuse(turns: Iterable[Turn], reason: str) -> Refused:
    return Refused(tuple(turn.call_id for turn in turns), reason)


def _sampled(turns: Iterable[Turn]) -> int:
    return sum(len(turn.answer_ids) for turn in turns if not turn.auxiliary)


def _sample(turns: list[Turn], mine: set[Turn], is_main: bool, weight: float, reason: Break) -> Sample:
    token_ids: Ids = array("i")
    mask = bytearray()
    logprobs: Logprobs = array("f")
    versions: list[tuple[int, str]] = []
    for turn in turns:
        token_ids += turn.input_ids
        versions += ((len(token_ids) + offset, version) for offset, version in turn.versions)
        token_ids += turn.answer_ids
        mask += bytes(len(turn.input_ids))
        mask += bytes([turn in mine]) * len(turn.answer_ids)
        logprobs += _UNKNOWN * len(turn.input_ids)
        logprobs += _UNKNOWN * len(turn.answer_ids) if turn.logprobs is None else turn.logprobs
    return Sample(
        sample_id=f"s{turns[-1].call_id}",
        call_ids=tuple(turn.call_id for turn in turns),
        token_ids=token_ids,
        loss_mask=bytes(mask),
        logprobs=logprobs if all(turn.logprobs is not None for turn in mine if turn.answer_ids) else None,
        versions=tuple(versions),
        is_main=is_main,
        weight=weight,
        reason=reason,
    )


def _reason(turns: list[Turn], main: list[Turn], order: dict[Turn, int]) -> Break:
    """Why this row is not part of the main one: the later of the calls where they part. For the main row its root's.

    A path is never a prefix of another, since both end in leaves.
    """
    for ours, theirs in zip(turns, main, strict=False):
        if ours is not theirs:
            reason = max(ours, theirs, key=lambda turn: order[turn]).reason
            return Break.BRANCH if reason is Break.APPEND else reason  # both went on before either was answered
    return main[0].reason
