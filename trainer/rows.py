"""From a recorded sample to the row that veRL trains: prompt and response, nothing rendered, nothing guessed.

The prompt is what stands before the first trained id; everything after it is response, masked where the policy did not
speak. What lies before the prompt and cannot be seen from any trained position is left out (`reach`): the numbers stay
the same, and a harness with a prompt of 5,000 ids costs a small policy no more than one of 200.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openforge.errors import OpenForgeError
from trainer.versions import step_of


class RowError(OpenForgeError):
    """A sample that cannot become an exact row, and why."""

    def __init__(self, reason: str, summary: str) -> None:
        super().__init__(summary)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Row:
    """`mask` and `logprobs` have the length of `response`; a logprob is 0.0 where the mask is 0, and unused there.

    `oldest` and `newest` are the training steps of the weights that its trained ids were sampled from.
    """

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]
    oldest: int
    newest: int


def attention_reach(config: Mapping[str, Any]) -> int | None:
    """How many ids before a position can influence it, or None for all: a model whose layers all slide sees no more
    than (window - 1) ids further back in each of them. `config` is the model's config.json."""
    window = config.get("sliding_window")
    layers = config.get("num_hidden_layers")
    if not (config.get("use_sliding_window", True) and isinstance(window, int) and isinstance(layers, int)):
        return None
    kinds = config.get("layer_types") or []
    slides = all(kind == "sliding_attention" for kind in kinds) if kinds else config.get("max_window_layers") == 0
    return layers * (window - 1) if slides else None


def make_row(sample: Mapping[str, Any], *, reach: int | None, max_length: int) -> Row:
    """The row of a sample as the orchestrator hands it out. Raises RowError; a long row is refused, never cut."""
    ids, mask, logprobs = sample["token_ids"], sample["loss_mask"], sample["logprobs"]
    if logprobs is None:
        raise RowError("logprobs_missing", f"{sample['sample_id']} has no logprobs")
    if not len(ids) == len(mask) == len(logprobs):
        raise RowError("lengths", f"{sample['sample_id']}: {len(ids)} ids, {len(mask)} mask, {len(logprobs)} logprobs")
    first = _first(mask)
    if first is None:
        raise RowError("no_sampled_tokens", f"{sample['sample_id']} trains nothing")
    if first == 0:
        raise RowError("empty_prompt_ids", f"{sample['sample_id']} has no prompt")
    start = 0 if reach is None else max(0, first - 1 - reach)
    end = len(mask) - _first(mask[::-1])  # type: ignore[operator]  # there is one, see above
    if end - start > max_length:
        raise RowError("too_long", f"{sample['sample_id']} has {end - start} ids, a row may have {max_length}")
    kept = [bool(flag) for flag in mask[first:end]]
    if any(value is None for value, flag in zip(logprobs[first:end], kept, strict=True) if flag):
        raise RowError("logprobs_missing", f"{sample['sample_id']} lacks the logprob of a sampled id")
    steps = _steps(sample, kept, first)
    return Row(
        prompt=list(ids[start:first]),
        response=list(ids[first:end]),
        mask=[int(flag) for flag in kept],
        logprobs=[value if flag else 0.0 for value, flag in zip(logprobs[first:end], kept, strict=True)],
        oldest=min(steps),
        newest=max(steps),
    )


def _steps(sample: Mapping[str, Any], kept: Sequence[bool], first: int) -> list[int]:
    """Of the weights that sampled trained ids; `kept` begins at `first`. Ids that another row trains do not count."""
    spans = [(0, ""), *(sample["versions"] or ())]
    ends = [offset for offset, _ in spans[1:]] + [first + len(kept)]
    versions = [
        version
        for (start, version), end in zip(spans, ends, strict=True)
        if any(kept[max(0, start - first) : max(0, end - first)])
    ]
    if not versions or not all(versions):
        raise RowError("version_missing", f"{sample['sample_id']} does not say which weights sampled it")
    try:
        return [step_of(version) for version in versions]
    except ValueError as error:
        raise RowError("version_unknown", f"{sample['sample_id']} was sampled by {versions}, no step's") from error


def _first(mask: Sequence[int]) -> int | None:
    return next((index for index, flag in enumerate(mask) if flag), None)
