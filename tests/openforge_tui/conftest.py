"""Samples of a policy that learned meanwhile: sampled for real, by transformers, from several sets of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openforge_tui.verify import Sample
from tests.trainer.conftest import write_other_weights, write_toy_model


@dataclass(frozen=True)
class Trained:
    """Weights by version, and samples by what sampled them: one of "0", one of "2", one begun by "0" and ended by "2",
    one whose two answers are of "2" and "10"."""

    weights: dict[str, Path]
    samples: dict[str, Sample]


class _Row:
    """A row that grows as a rollout does."""

    def __init__(self, models: dict[str, Any]) -> None:
        self._models = models
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float | None] = []
        self._spans: list[tuple[int, str]] = []

    def given(self, count: int) -> None:
        import torch

        self._ids += torch.randint(0, 256, (count,)).tolist()
        self._mask += [0] * count
        self._logprobs += [None] * count

    def sampled(self, version: str, count: int) -> None:
        """From the ids that are there, as a live policy goes on after a weight sync."""
        import torch

        before = torch.tensor([self._ids])
        told = self._models[version].generate(
            before,
            attention_mask=torch.ones_like(before),
            do_sample=True,
            top_k=0,
            min_new_tokens=count,
            max_new_tokens=count,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new = told.sequences[0, len(self._ids) :].tolist()
        logprobs = torch.cat(told.logits).log_softmax(-1)
        self._spans.append((len(self._ids), version))
        self._logprobs += [float(row[token]) for row, token in zip(logprobs, new, strict=True)]
        self._ids += new
        self._mask += [1] * count

    def sample(self, name: str) -> Sample:
        return Sample(f"r1.t.react.{name}", f"s{name}", self._ids, self._mask, self._logprobs, self._spans)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch = pytest.importorskip("torch", reason="the train set is not installed")
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        toy = write_toy_model(folder / "toy", monkeypatch)
    first = write_other_weights(toy, folder / "first", 1, 0.2)
    second = write_other_weights(first, folder / "second", 2, 0.01)
    tenth = write_other_weights(second, folder / "tenth", 3, 0.01)
    weights = {"0": first, "2": second, "10": tenth}
    models = {name: AutoModelForCausalLM.from_pretrained(weight, dtype="float32") for name, weight in weights.items()}
    samples = {}
    torch.manual_seed(0)
    for number, turns in enumerate(([("0", 9)], [("2", 9)], [("0", 5), ("2", 6)], [("2", 6), ("", 7), ("10", 6)])):
        row = _Row(models)
        row.given(20)
        for version, count in turns:
            row.sampled(version, count) if version else row.given(count)
        samples["+".join(version for version, _ in turns if version)] = row.sample(str(number))
    return Trained(weights, samples)
