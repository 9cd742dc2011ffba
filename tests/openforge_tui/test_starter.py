"""The starter's lessons, for real: teacher, harness, sandbox, recorder, journal, export."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from openforge_tui.starter import demonstrate, lessons
from proxy_addons.teacher import FINAL, read_plans
from trainer.starter.base import qwen3_tokenizer
from trainer.starter.cut import Row, cut_row, cut_tokenizer, renumber
from trainer.starter.recipe import Recipe
from trainer.starter.teach import read_rows

RECIPE = Recipe(task_refs=("desk/count-lines", "desk/fix-typo"), harnesses=("react",), samples=1)


def test_right_and_wrong_share_their_start_files() -> None:
    by_start: dict[tuple[str, str, int], list[int]] = {}
    for spec in lessons(Recipe()):
        by_start.setdefault((spec.task.name, spec.harness.name, spec.seed), []).append(spec.sample % 2)
    assert len(by_start) == 12 * 3 * 3
    assert all(kinds == [0, 1] for kinds in by_start.values())


@pytest.mark.contract
async def test_demonstrations_become_exact_rows(tmp_path: Path) -> None:
    source = qwen3_tokenizer()
    dest = tmp_path / "rows.parquet"
    await demonstrate(RECIPE, source, tmp_path / "store", dest, lambda text: None, lambda rollout: None)

    whole = Tokenizer.from_file(str(source / "tokenizer.json"))
    plans = read_plans([spec.task for spec in lessons(RECIPE)])
    for told in pq.read_table(dest).to_pylist():
        right = told["rollout_id"].endswith(".0")
        assert told["reward"] == float(right)
        said = whole.decode([i for i, m in zip(told["input_ids"], told["loss_mask"], strict=True) if m], False)
        plan = plans[told["task"].split("/")[-1]].pick(0 if right else 1)
        assert said.split("<|im_end|>")[-2:] == [FINAL, ""]
        assert [text.count(command) for text, command in zip(said.split("<|im_end|>"), plan, strict=False)] == [
            1
        ] * len(plan)

    rows = read_rows([dest])
    new_ids = cut_tokenizer(source, {i for row in rows for i in row.input_ids}, tmp_path / "cut", first_merges=300)
    cut = Tokenizer.from_file(str(tmp_path / "cut" / "tokenizer.json"))
    special = {whole.token_to_id(token.content) for token in whole.get_added_tokens_decoder().values()}
    for row in rows:
        own = renumber(row, new_ids)
        assert cut.decode(own.input_ids, False) == whole.decode(row.input_ids, False)
        for piece in split_at(row.input_ids, special):
            if whole.encode(whole.decode(piece), add_special_tokens=False).ids == piece:
                again = cut.encode(whole.decode(piece), add_special_tokens=False).ids
                assert again == renumber(Row(piece, []), new_ids).input_ids
        shape = RECIPE.shape
        assert sum(cut_row(own, shape.layers, shape.window).loss_mask) == sum(row.loss_mask)


def split_at(ids: list[int], special: set[int]) -> list[list[int]]:
    """The runs of ids between special tokens."""
    runs: list[list[int]] = [[]]
    for token in ids:
        if token in special:
            runs.append([])
        else:
            runs[-1].append(token)
    return [run for run in runs if run]
