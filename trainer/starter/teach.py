"""From the demonstrations' token ids to a model folder: cut the tokenizer and the rows, start from random, teach.

Takes the store's SFT export as it is (Parquet: `input_ids`, `loss_mask`, `reward` and who); knows nothing about how the
demonstrations were made.
"""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.sft import Step, run_sft
from trainer.starter.cut import Row, blur, cut_row, cut_tokenizer, renumber
from trainer.starter.model import END_OF_TEXT, write_untrained
from trainer.starter.recipe import Recipe


def read_rows(exports: Sequence[Path]) -> list[Row]:
    """The rows of the export files, in their order."""
    rows: list[Row] = []
    for export in exports:
        columns = pq.read_table(export, columns=["input_ids", "loss_mask"]).to_pydict()
        rows += [Row(ids, mask) for ids, mask in zip(columns["input_ids"], columns["loss_mask"], strict=True)]
    return rows


def teach(
    rows: Sequence[Row], tokenizer: Path, dest: Path, recipe: Recipe, on_step: Callable[[Step], None]
) -> list[Step]:
    """Leave the taught model in the new folder `dest`; the result is the loss of every step.

    `rows` are in the ids of `tokenizer`. The same rows and recipe start from the same weights.
    """
    with TemporaryDirectory(prefix=".teach-", dir=dest.parent) as folder:
        work = Path(folder)
        used_ids = {token for row in rows for token in row.input_ids}
        new_ids = cut_tokenizer(tokenizer, used_ids, work / "tokenizer", recipe.first_merges)
        write_untrained(work / "model", work / "tokenizer", new_ids, recipe.shape, recipe.seed)
        _write_rows(work / "rows.parquet", rows, new_ids, recipe)
        return run_sft(work / "rows.parquet", work / "model", dest, recipe.sft, on_step)


def _write_rows(dest: Path, rows: Sequence[Row], new_ids: dict[int, int], recipe: Recipe) -> None:
    """Each row as often as it will be seen, blurred anew each time."""
    shape, sft = recipe.shape, recipe.sft
    own = [renumber(cut_row(row, shape.layers, shape.window), new_ids) for row in rows]
    pick = random.Random(recipe.seed)
    plain_ids = new_ids[END_OF_TEXT]  # added tokens come last, this one first among them
    copies = math.ceil(sft.steps * sft.batch_rows / len(own))
    seen = [blur(row, recipe.blur, plain_ids, pick) for _ in range(copies) for row in own]
    columns = {"input_ids": [row.input_ids for row in seen], "loss_mask": [row.loss_mask for row in seen]}
    pq.write_table(pa.table(columns), dest)
