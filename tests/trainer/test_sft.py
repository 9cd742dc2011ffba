"""veRL's own trainer, for real, on a toy: three steps on a CPU."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="the train set is not installed")

from openforge.errors import InfraError, OpenForgeError, UsageError
from tests.trainer.conftest import write_toy_model
from trainer.sft import SftSettings, Step, overrides, run_sft


def write_rows(folder: Path) -> Path:
    """Rows that say the same short thing; their file."""
    ids = [list(range(10, 14 + place % 3)) for place in range(8)]
    masks = [[0, 0, *[1] * (len(row) - 2)] for row in ids]
    pq.write_table(pa.table({"input_ids": ids, "loss_mask": masks}), folder / "rows.parquet")
    return folder / "rows.parquet"


@pytest.mark.contract
def test_verl_teaches_a_toy_and_leaves_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model = write_rows(tmp_path), write_toy_model(tmp_path / "model", monkeypatch)
    seen: list[Step] = []
    settings = SftSettings(steps=3, batch_rows=4, micro_rows=2, lr=0.02, warmup_steps=1, max_length=16, threads=1)
    steps = run_sft(rows, model, tmp_path / "taught", settings, seen.append)
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
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "taught" / name).read_bytes() == (model / name).read_bytes()
    assert not list(tmp_path.glob(".sft-*"))


@pytest.mark.contract
def test_a_row_that_is_too_long_stops_the_trainer_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, model = write_rows(tmp_path), write_toy_model(tmp_path / "model", monkeypatch)
    with pytest.raises(InfraError, match="rows are never cut"):
        run_sft(rows, model, tmp_path / "taught", SftSettings(steps=1, batch_rows=4, max_length=4))
    assert not (tmp_path / "taught").exists()


def test_fewer_rows_than_a_step_takes_are_refused_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "loss_mask": [[0, 1]]}), tmp_path / "rows.parquet")
    with pytest.raises(OpenForgeError, match="1 rows"):
        run_sft(tmp_path / "rows.parquet", tmp_path, tmp_path / "taught", SftSettings(batch_rows=8))


def test_several_gpus_take_torchrun_bfloat16_and_no_part_of_the_cpu_platform(tmp_path: Path) -> None:
    settings = SftSettings(optimizer="adamw", gpus=4)
    told = overrides(tmp_path / "r.parquet", tmp_path, tmp_path, 100, settings)
    assert {"trainer.device=cuda", "trainer.n_gpus_per_node=4", "optim.optimizer=AdamW"} <= set(told)
    assert "+engine.mixed_precision={param_dtype:bf16,reduce_dtype:fp32,buffer_dtype:fp32}" in told
    with pytest.raises(UsageError, match="whole parameters"):
        run_sft(tmp_path / "r.parquet", tmp_path, tmp_path / "taught", SftSettings(gpus=2))


@pytest.mark.parametrize("settings", [SftSettings(), SftSettings(optimizer="adamw", recompute=True, gpus=4)])
def test_what_verl_is_told_fits_its_own_schema(settings: SftSettings, tmp_path: Path) -> None:
    import verl.trainer.config
    from hydra import compose, initialize_config_dir
    from verl.utils.config import omega_conf_to_dataclass

    with initialize_config_dir(str(Path(verl.trainer.config.__file__).parent), version_base=None):
        told = overrides(tmp_path / "r.parquet", tmp_path, tmp_path, 100, settings)
        config = compose("sft_trainer_engine", overrides=told)
    optimizer, engine = (omega_conf_to_dataclass(config[part]) for part in ("optim", "engine"))
    assert (optimizer.lr, engine.strategy) == (settings.lr, "fsdp2")
