"""Where a training run keeps its checkpoints, and which of them are whole.

veRL writes `global_step_N` with the model in Hugging Face's form below it; a marker in the folder, written last, says
that all of it is there and that the store knows its step. Nothing else makes a checkpoint. Loads no torch, no veRL.
"""

import os
from pathlib import Path

import orjson

MARKER = "openforge.json"
_PREFIX = "global_step_"


def checkpoints(trainer_folder: Path) -> list[Path]:
    """The folders of the whole ones, by step; half ones of a killed trainer do not count."""
    return sorted((path.parent for path in trainer_folder.glob(f"{_PREFIX}*/{MARKER}")), key=checkpoint_step)


def last_checkpoint(trainer_folder: Path) -> Path | None:
    """The newest whole one."""
    return max(checkpoints(trainer_folder), key=checkpoint_step, default=None)


def checkpoint_step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def weights_of(checkpoint: Path) -> Path:
    """The model folder of a checkpoint, in Hugging Face's form."""
    return checkpoint / "actor" / "huggingface"


def saved_version(checkpoint: str | Path | None) -> str:
    """What the weights of a checkpoint are called; empty without one, or when it does not say."""
    marker = Path(checkpoint or "") / MARKER
    return str(orjson.loads(marker.read_bytes())["weight_version"]) if checkpoint and marker.is_file() else ""


def mark(trainer_folder: Path, step: int, version: str) -> Path:
    """Make a checkpoint of what veRL wrote of a step, once all of it lies on the disk; its folder."""
    folder = trainer_folder / f"{_PREFIX}{step}"
    draft = folder / f"{MARKER}.partial"
    draft.write_bytes(orjson.dumps({"step": step, "weight_version": version}))
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    draft.rename(folder / MARKER)
    return folder
