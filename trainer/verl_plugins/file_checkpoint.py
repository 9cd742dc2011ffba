"""Weights from trainer to policy through a folder in memory: veRL's checkpoint engine `openforge_file`.

For machines without NCCL. The whole state is written once and read once by each policy worker; both are bit-identical
copies. Selected by `rollout.checkpoint_engine.backend=openforge_file` with this module as `custom_backend_module`.
"""

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

_POLL_S = 0.01


@CheckpointEngineRegistry.register("openforge_file")
class FileCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    def __init__(self, bucket_size: int, is_master: bool = False, folder: str | None = None, **_: Any) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
        self._folder = Path(folder or memory)
        self._is_master = is_master
        self._file: Path | None = None

    def prepare(self) -> dict[str, str]:
        return {"key": uuid.uuid4().hex}

    @classmethod
    def build_topology(
        cls, actor_ranks: int, rollout_ranks: int, metadata: list[dict[str, str]]
    ) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        key = metadata[0]["key"]
        return {"key": [key] * actor_ranks}, {"key": [key] * rollout_ranks}

    def init_process_group(self, key: str = "", **_: Any) -> None:
        self._file = self._folder / f"openforge-weights-{key}.pt"

    def finalize(self) -> None:
        if self._is_master and self._file is not None:
            self._file.unlink(missing_ok=True)

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        assert self._file is not None
        state = {name: tensor.detach().cpu().clone() for name, tensor in weights}  # every rank takes part in gathering
        if self._is_master:
            draft = self._file.with_suffix(".partial")
            torch.save(state, draft)
            draft.rename(self._file)
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        assert self._file is not None
        while not self._file.exists():  # noqa: ASYNC110  the writer is another process
            await asyncio.sleep(_POLL_S)
        for name, tensor in torch.load(self._file).items():
            yield name, tensor
