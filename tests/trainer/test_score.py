"""Scores against what transformers itself says of the whole row at once."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

from transformers import AutoModelForCausalLM  # noqa: E402

from openforge.errors import OpenForgeError  # noqa: E402
from tests.trainer.conftest import write_other_weights, write_toy_model  # noqa: E402
from trainer import score  # noqa: E402
from trainer.score import Scorer  # noqa: E402

REACH = 2 * (8 - 1)  # of the toy: two layers with a window of 8


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small model whose next token depends much on those before."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield write_other_weights(write_toy_model(folder / "toy", monkeypatch), folder / "noisy", 1, 0.2)


@pytest.fixture
def ids() -> list[int]:
    torch.manual_seed(0)
    return [int(token) for token in torch.randint(0, 270, (120,))]


def whole_row(model_dir: Path, ids: list[int], temperature: float = 1.0) -> list[float]:
    """The logprob of each id but the first."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="float32")
    with torch.no_grad():
        logprobs = (model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
    return [float(logprobs[index, token]) for index, token in enumerate(ids[1:])]


def test_scores_are_those_of_the_whole_row(model_dir: Path, ids: list[int]) -> None:
    expected = whole_row(model_dir, ids)
    for positions in ([1, 2, 3], [70, 71, 72, 110], [119], list(range(1, 120))):
        assert Scorer(model_dir).score(ids, positions) == pytest.approx(
            [expected[position - 1] for position in positions], abs=1e-5
        )


def test_what_lies_beyond_the_reach_of_attention_is_not_computed(model_dir: Path, ids: list[int]) -> None:
    scorer = Scorer(model_dir)
    last, seen = len(ids) - 1, len(ids) - 2 - REACH
    before = scorer.score(ids, [last])
    assert scorer.score([5] * seen + ids[seen:], [last]) == before
    assert scorer.score([*ids[:seen], ids[seen] ^ 1, *ids[seen + 1 :]], [last]) != before


def test_a_model_that_sees_everything_is_given_everything(model_dir: Path, tmp_path: Path, ids: list[int]) -> None:
    shutil.copytree(model_dir, tmp_path / "whole")
    config = json.loads((model_dir / "config.json").read_bytes())
    config |= {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * 2}
    (tmp_path / "whole" / "config.json").write_text(json.dumps(config))
    last = len(ids) - 1
    (found,) = Scorer(tmp_path / "whole").score(ids, [last])
    assert found == pytest.approx(whole_row(tmp_path / "whole", ids)[-1], abs=1e-5)
    assert abs(found - Scorer(tmp_path / "whole").score([ids[0] ^ 1, *ids[1:]], [last])[0]) > 1e-4


def test_a_vocabulary_of_any_size_is_scored_in_parts(
    model_dir: Path, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = list(range(40, 101, 3))
    together = Scorer(model_dir).score(ids, positions)
    monkeypatch.setattr(score, "_LOGITS", 5 * 300)
    assert Scorer(model_dir).score(ids, positions) == pytest.approx(together, abs=1e-5)
    monkeypatch.setattr(score, "_LOGITS", 1)
    assert Scorer(model_dir).score(ids, positions) == pytest.approx(together, abs=1e-5)


@pytest.mark.parametrize(("temperature", "divisor"), [(0.5, 0.5), (2.0, 2.0), (0.0, 1.0)])
def test_the_temperature_of_sampling_counts(
    model_dir: Path, ids: list[int], temperature: float, divisor: float
) -> None:
    expected = whole_row(model_dir, ids, divisor)[-1]
    assert Scorer(model_dir, temperature=temperature).score(ids, [len(ids) - 1]) == pytest.approx([expected], abs=1e-5)


def test_weights_are_rounded_to_what_the_policy_was_served_in(model_dir: Path, tmp_path: Path, ids: list[int]) -> None:
    AutoModelForCausalLM.from_pretrained(model_dir, dtype="bfloat16").save_pretrained(tmp_path / "rounded")
    last = [len(ids) - 1]
    rounded = Scorer(tmp_path / "rounded").score(ids, last)
    assert Scorer(model_dir, dtype="bfloat16").score(ids, last) == pytest.approx(rounded, abs=1e-6)
    assert Scorer(tmp_path / "rounded", dtype="auto").score(ids, last) == pytest.approx(rounded, abs=1e-6)
    assert abs(Scorer(model_dir).score(ids, last)[0] - rounded[0]) > 1e-5


@pytest.mark.parametrize("strange", [1 << 20, -1])
def test_an_id_that_the_model_does_not_have_is_named(model_dir: Path, ids: list[int], strange: int) -> None:
    with pytest.raises(OpenForgeError, match=f"has no id {strange}"):
        Scorer(model_dir).score([*ids[:50], strange, *ids[51:]], [100])


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
def test_a_folder_that_is_no_model_is_named(model_dir: Path, tmp_path: Path, broken: str) -> None:
    shutil.copytree(model_dir, tmp_path / "broken")
    (tmp_path / "broken" / broken).write_text("{")
    with pytest.raises(OpenForgeError, match="broken cannot be loaded"):
        Scorer(tmp_path / "broken")
