"""From a run to rows for the trainer, and what is refused on the way; the teaching itself is in cli/test_sft.py."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "openforge" / "store"))

from synthetic import SyntheticRun

from openforge.errors import UsageError
from openforge_tui.sft import Choice, Teaching, check, choose, settings_for, write_rows
from tests.trainer.conftest import write_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def write_model(folder: Path, **config: object) -> Path:
    """A model folder without weights, whose context is 256 tokens."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 1000, "max_position_embeddings": 256, **config}))
    return folder


def know_vocabulary(store_root: Path, model: Path) -> None:
    """Let the made-up runs of a store have been recorded with the model's tokenizer."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = range(tokenizer.get_vocab_size())
    lines = [json.dumps({"token_id": i, "text": tokenizer.decode([i], skip_special_tokens=False)}) for i in ids]
    (store_root / "vocab" / "v1.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def run(store_root: Path, model: Path) -> Iterator[SyntheticRun]:
    """Two successes of 240 tokens, one of 320, a failure; recorded with the model's tokenizer."""
    run = SyntheticRun(store_root)
    know_vocabulary(store_root, model)
    run.rollout(sample=0)
    run.rollout(sample=1, harness="pi")
    run.rollout(sample=2, turns=4)
    run.rollout(sample=3, reward=0.0)
    yield run
    run.close()


def chosen(run: SyntheticRun, **choice: object) -> Choice:
    return Choice(runs=(run.run_id,), **choice)  # type: ignore[arg-type]


def test_the_account_of_a_run(run: SyntheticRun, model: Path) -> None:
    selection = choose(run.store_root, model, chosen(run))
    check(selection, chosen(run), model)
    assert [tuple(line) for line in selection.outcomes] == [
        ("taken", 2, 2),
        ("longer than 256 tokens", 1, 1),
        ("reward below 1", 1, 1),
        ("all", 4, 4),
    ]


def test_a_long_row_is_an_error_when_a_length_is_asked_for(run: SyntheticRun, model: Path) -> None:
    choice = chosen(run, max_length=250)
    with pytest.raises(UsageError, match="320 tokens, --max-length allows 250") as told:
        check(choose(run.store_root, model, choice), choice, model)
    assert '--where "len(token_ids) <= 250"' in told.value.hint
    with pytest.raises(UsageError, match="no more than 256"):
        choose(run.store_root, model, chosen(run, max_length=257))


def test_nothing_to_teach_is_an_error_with_the_commonest_reason(run: SyntheticRun, model: Path) -> None:
    choice = chosen(run, min_reward=2)
    with pytest.raises(UsageError, match="nothing is left to teach: reward below 2"):
        check(choose(run.store_root, model, choice), choice, model)


def test_another_tokenizer_is_told_as_such(run: SyntheticRun, model: Path) -> None:
    (run.store_root / "vocab" / "v1.jsonl").write_text('{"token_id": 0, "text": "x"}\n')
    choice = chosen(run)
    with pytest.raises(UsageError, match="it has another tokenizer"):
        check(choose(run.store_root, model, choice), choice, model)


def test_settings_follow_the_rows() -> None:
    few = settings_for([100, 50, 70], Teaching())
    assert (few.batch_rows, few.steps, few.micro_rows, few.max_length, few.recompute) == (3, 3, 3, 100, False)
    many = settings_for([500] * 100, Teaching(epochs=2, batch=10))
    assert (many.batch_rows, many.steps, many.micro_rows, many.lr) == (10, 20, 2, 2e-5)
    long = settings_for([9000] * 8, Teaching(steps=4, optimizer="muon", lr=0.01))
    assert (long.steps, long.micro_rows, long.recompute, long.optimizer, long.lr) == (4, 1, True, "muon", 0.01)
    with pytest.raises(UsageError, match="cannot take 4 rows of 3"):
        settings_for([1, 2, 3], Teaching(batch=4))


def test_gpus_share_the_rows_of_a_step() -> None:
    shared = settings_for([500] * 20, Teaching(gpus=3))
    assert (shared.gpus, shared.batch_rows, shared.micro_rows) == (3, 6, 2)
    with pytest.raises(UsageError, match="4 GPUs cannot share 6 rows"):
        settings_for([500] * 20, Teaching(gpus=4, batch=6))
    with pytest.raises(UsageError, match="cannot take 4 rows of 3"):
        settings_for([500] * 3, Teaching(gpus=4))


def test_rows_reach_the_trainer_as_they_were_recorded(model: Path, tmp_path: Path) -> None:
    rows = [([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1])]
    assert write_rows(write_recorded(tmp_path, rows), tmp_path / "rows.parquet", model) == [3, 2]
    assert read(tmp_path / "rows.parquet") == rows


def test_a_model_whose_layers_all_slide_gets_what_its_learned_tokens_can_see(tmp_path: Path) -> None:
    slides = {"sliding_window": 3, "rope_parameters": {}}
    recorded = write_recorded(tmp_path, [(list(range(20)), [0] * 10 + [1] * 10)])
    all_slide = write_model(tmp_path / "s", **slides, layer_types=["sliding_attention"] * 2)
    assert write_rows(recorded, tmp_path / "s.parquet", all_slide) == [15]  # 2 layers of 2, and the one that predicts
    assert read(tmp_path / "s.parquet")[0][0] == list(range(5, 20))
    mixed = write_model(tmp_path / "m", **slides, layer_types=["sliding_attention", "full_attention"])
    assert write_rows(recorded, tmp_path / "m.parquet", mixed) == [20]


def write_recorded(folder: Path, rows: list[tuple[list[int], list[int]]]) -> Path:
    columns = {
        "input_ids": [ids for ids, _ in rows],
        "loss_mask": [mask for _, mask in rows],
        "task": ["t"] * len(rows),
    }
    pq.write_table(pa.table(columns), folder / "recorded.parquet")
    return folder / "recorded.parquet"


def read(path: Path) -> list[tuple[list[int], list[int]]]:
    columns = pq.read_table(path).to_pydict()
    return list(zip(columns["input_ids"], columns["loss_mask"], strict=True))
