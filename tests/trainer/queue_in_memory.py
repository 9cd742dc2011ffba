"""veRL's transfer queue without its processes: rows by key, tensors of one field as a nested tensor."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta


class Queue:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_get(
        self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] | None = None
    ) -> TensorDict:
        """Fields that no row has are left out, as by the real one."""
        names = [name for name in select_fields or self.rows[keys[0]] if name in self.rows[keys[0]]]
        return TensorDict({name: _column([self.rows[key][name] for key in keys]) for name in names}, [len(keys)])

    def kv_batch_put(
        self, keys: Sequence[str], partition_id: str, fields: TensorDict, tags: list[dict[str, Any]] | None = None
    ) -> KVBatchMeta:
        for name in fields.keys():  # noqa: SIM118  a TensorDict iterates over its rows
            column = fields[name]
            values = column.unbind() if isinstance(column, torch.Tensor) else list(column)
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=tags or [{} for _ in keys])


def _column(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor) and values[0].ndim:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return torch.stack(values) if isinstance(values[0], torch.Tensor) else NonTensorStack(*values)
