"""veRL's own trainer, for real, on a toy: three steps on a CPU."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="the train set is not installed")

from openforge.errors import InfraError, OpenForgeError
from trainer.sft import SftSettings, Step, run_sft
from trainer.starter.cut import cut_tokenizer
from trainer.starter.model import Shape, write_untrained


def write_toy(tokenizer_dir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An untrained two-layer model and rows that say the same short thing; the rows' file."""
    monkeypatch.setattr("trainer.starter.model.END_OF_TEXT", 268)
    monkeypatch.setattr("trainer.starter.model.END_OF_TURN", 270)
    new_ids = cut_tokenizer(tokenizer_dir, [], folder / "cut")
    write_untrained(folder / "model", folder / "cut", new_ids, Shape(hidden=32, heads=2, window=8), seed=0)
    ids = [list(range(10, 14 + place % 3)) for place in range(8)]
    masks = [[0, 0, *[1] * (len(row) - 2)] for row in ids]
    pq.write_table(pa.table({"input_ids": ids, "loss_mask": masks}), folder / "rows.parquet")
    return folder / "rows.parquet"


@pytest.mark.contract
def test_verl_teaches_a_toy_and_leaves_a_model(
    tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_toy(tokenizer_dir, tmp_path, monkeypatch)
    seen: list[Step] = []
    settings = SftSettings(steps=3, batch_rows=4, micro_rows=2, lr=0.02, warmup_steps=1, max_length=16, threads=1)
    steps = run_sft(rows, tmp_path / "model", tmp_path / "taught", settings, seen.append)
    assert steps == seen
    assert [step.number for step in steps] == [1, 2, 3]
    assert steps[2].loss < steps[0].loss
    config = json.loads((tmp_path / "taught" / "config.json").read_text())
    assert (config["dtype"], config["sliding_window"]) == ("float32", 8)

    import torch
    from safetensors.torch import load_file

    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("model", "taught"))
    assert before.keys() == after.keys()
    assert all(tensor.dtype == torch.float32 for tensor in after.values())
    assert not torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    assert not list(tmp_path.glob(".sft-*"))


@pytest.mark.contract
def test_a_row_that_is_too_long_stops_the_trainer_with_its_reason(
    tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_toy(tokenizer_dir, tmp_path, monkeypatch)
    with pytest.raises(InfraError, match="rows are never cut"):
        run_sft(rows, tmp_path / "model", tmp_path / "taught", SftSettings(steps=1, batch_rows=4, max_length=4))
    assert not (tmp_path / "taught").exists()


def test_fewer_rows_than_a_step_takes_are_refused_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "loss_mask": [[0, 1]]}), tmp_path / "rows.parquet")
    with pytest.raises(OpenForgeError, match="1 rows"):
        run_sft(tmp_path / "rows.parquet", tmp_path, tmp_path / "taught", SftSettings(batch_rows=8))
