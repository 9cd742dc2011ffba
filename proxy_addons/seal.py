"""The end of a rollout: no more calls, and its calls become training rows in the journal."""

from collections import Counter
from typing import Any

from openforge.tokens.samples import Sample, build_samples
from proxy_addons.ledger import Ledger
from proxy_addons.rollouts import Rollout, State
from proxy_addons.side_calls import tag_early_side_calls


def seal(rollout: Rollout, ledger: Ledger, vocab_size: int | None) -> dict[str, Any]:
    """Close a rollout and journal its rows; the same summary again when it is closed already. Raises JournalError."""
    if rollout.summary is not None:
        return rollout.summary
    rollout.end(State.SEALED)
    refused: list[tuple[tuple[str, ...], str]] = []
    samples: list[Sample] = []
    if vocab_size is not None:
        refused += [((turn.call_id,), "auxiliary") for turn in tag_early_side_calls(rollout)]
        samples, faults = build_samples(rollout.graph, vocab_size=vocab_size)
        refused += [(fault.call_ids, fault.reason) for fault in faults]
    for sample in samples:
        _write(rollout, ledger, sample)
    for call_ids, reason in refused:
        ledger.append("sample.refused", rollout, call_ids=list(call_ids), reason=reason)
    totals = rollout.totals
    rollout.summary = {
        "calls": len(rollout.graph.turns),
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "samples": [
            {
                "sample_id": sample.sample_id,
                "tokens": len(sample.token_ids),
                "sampled": sum(sample.loss_mask),
                "is_main": sample.is_main,
            }
            for sample in samples
        ],
        "refused": [{"reason": reason, "call_ids": list(call_ids)} for call_ids, reason in refused],
        "breaks": dict(Counter(str(turn.reason) for turn in rollout.graph.turns)),
        "aborted": totals.aborted,
        "limited": totals.limited,
        "refused_calls": totals.refused,
        "invalid_calls": _invalid_calls(rollout),
    }
    rollout.forget()
    return rollout.summary


def _invalid_calls(rollout: Rollout) -> int:
    """Of the agent's own calls: what a title call makes up is not its doing."""
    return sum(rollout.invalid_calls.get(turn.call_id, 0) for turn in rollout.graph.turns if not turn.auxiliary)


def _write(rollout: Rollout, ledger: Ledger, sample: Sample) -> None:
    ledger.append(
        "sample",
        rollout,
        sample_id=sample.sample_id,
        call_ids=list(sample.call_ids),
        token_ids=sample.token_ids,
        loss_mask=sample.loss_mask,
        logprobs=sample.logprobs,
        versions=[list(version) for version in sample.versions],
        is_main=sample.is_main,
        weight=sample.weight,
        reason=str(sample.reason),
    )
