"""veRL data set of recorded token ids and loss masks: nothing is rendered, padded or cut here.

Reads Parquet files with the columns `input_ids` (list of int) and `loss_mask` (list of 0/1, the same length), which is
what the store's SFT export writes. Used by the SFT trainer as `data.custom_cls` with `data.pad_mode=no_padding`.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset


class IdsDataset(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """Rows as veRL wants them: `input_ids`, `position_ids`, `loss_mask`, each a (length,) tensor of int64.

    Raises ValueError for a row longer than `config.max_length` (a cut row would teach something that nobody did), for
    a mask of another length and for a row that teaches nothing.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: object = None,
        config: Any = None,
        processor: object = None,
        max_samples: int = -1,
    ) -> None:
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self.rows: list[tuple[list[int], list[int]]] = []
        for file in files:
            columns = pq.read_table(file, columns=["input_ids", "loss_mask"]).to_pydict()
            self.rows.extend(zip(columns["input_ids"], columns["loss_mask"], strict=True))
        if max_samples >= 0:
            self.rows = self.rows[:max_samples]
        max_length = int(config["max_length"]) if config is not None else None
        for number, (ids, mask) in enumerate(self.rows):
            _check(number, ids, mask, max_length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, mask = self.rows[index]
        return {
            "input_ids": torch.tensor(ids),
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(mask),
        }


def _check(number: int, ids: Sequence[int], mask: Sequence[int], max_length: int | None) -> None:
    if max_length is not None and len(ids) > max_length:
        raise ValueError(f"row {number} has {len(ids)} tokens, data.max_length is {max_length}; rows are never cut")
    if len(mask) != len(ids):
        raise ValueError(f"row {number} has {len(ids)} tokens but a loss mask of {len(mask)}")
    # The first token has nothing before it that could predict it; veRL's rolled mask would teach it to the row before.
    if not any(mask) or mask[0]:
        raise ValueError(f"row {number} has no token to learn, or its first one is marked")
