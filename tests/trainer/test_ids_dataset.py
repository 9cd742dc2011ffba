from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="the train set is not installed")

from trainer.verl_plugins.ids_dataset import IdsDataset


def write(path: Path, ids: list[list[int]], masks: list[list[int]]) -> str:
    pq.write_table(pa.table({"input_ids": ids, "loss_mask": masks, "task": ["t"] * len(ids)}), path)
    return str(path)


def test_rows_come_out_as_they_went_in(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.parquet", [[5, 6, 7], [8, 9]], [[0, 1, 1], [0, 1]])
    rows = IdsDataset([file, file], config={"max_length": 3}, max_samples=3)
    assert len(rows) == 3
    assert {key: value.tolist() for key, value in rows[0].items()} == {
        "input_ids": [5, 6, 7],
        "position_ids": [0, 1, 2],
        "loss_mask": [0, 1, 1],
    }


@pytest.mark.parametrize(
    ("ids", "mask", "complaint"),
    [
        ([1, 2, 3, 4], [0, 0, 0, 1], "never cut"),
        ([1, 2, 3], [0, 1], "mask of 2"),
        ([1, 2, 3], [0, 0, 0], "no token to learn"),
        ([1, 2, 3], [1, 1, 1], "first one is marked"),
    ],
)
def test_a_row_that_cannot_be_exact_is_refused(tmp_path: Path, ids: list[int], mask: list[int], complaint: str) -> None:
    file = write(tmp_path / "rows.parquet", [[1, 2], ids], [[0, 1], mask])
    with pytest.raises(ValueError, match=complaint):
        IdsDataset(file, config={"max_length": 3})
