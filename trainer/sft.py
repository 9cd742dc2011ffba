"""Supervised fine-tuning with veRL's own SFT trainer: one function, from rows of recorded ids to a model folder.

The trainer runs as a process of its own, on GPUs or on the CPU platform of `trainer.verl_plugins`. Rows are taken as
they are: ids and masks, nothing is rendered again, and a row that is too long is an error. Any causal model in Hugging
Face's layout goes in, and the same layout comes out with the tokenizer it had.
"""

import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow.parquet as pq

from openforge.errors import InfraError, OpenForgeError, UsageError
from openforge.program import run_program
from trainer.verl_plugins import CPU_ENVIRONMENT

_ROOT = Path(__file__).resolve().parent.parent
_STEP = re.compile(r"step:(\d+) - .*?\btrain/loss:([^ ]+)")


class Step(NamedTuple):
    """`number` counts from 1; `loss` is the mean over the step's learned tokens, in nats."""

    number: int
    loss: float


@dataclass(frozen=True)
class SftSettings:
    """What is taught how long; `lr` is warmed up and then lowered along a cosine to a twentieth.

    A step takes `batch_rows` rows, each GPU `micro_rows` at a time; gpus × micro_rows must divide it. `muon` learns a
    small model from nothing in a quarter of AdamW's steps, on one GPU at most. `recompute` saves memory: activations
    are made again for the backward pass. `gpus=0` is the CPU, with `threads`.
    """

    steps: int = 300
    batch_rows: int = 8
    micro_rows: int = 8
    lr: float = 4e-3
    warmup_steps: int = 20
    max_length: int = 1024
    threads: int = 2
    optimizer: Literal["muon", "adamw"] = "muon"
    recompute: bool = False
    gpus: int = 0


def run_sft(
    rows: Path,
    model: Path,
    dest: Path,
    settings: SftSettings,
    on_step: Callable[[Step], None] = lambda step: None,
) -> list[Step]:
    """Teach the model in folder `model` the rows of a Parquet file and leave the result in the new folder `dest`.

    `rows` has the columns `input_ids` and `loss_mask`. Raises UsageError for muon on several GPUs, OpenForgeError when
    there are fewer rows than a step takes or the loss is no longer a number, InfraError with the trainer's last lines
    when it fails.
    """
    if settings.optimizer == "muon" and settings.gpus > 1:
        raise UsageError("muon needs whole parameters, and several GPUs share them", hint="--optimizer adamw")
    row_count = pq.read_metadata(rows).num_rows
    if row_count < settings.batch_rows:
        raise OpenForgeError(f"{rows.name} has {row_count} rows, a step takes {settings.batch_rows}")
    steps: list[Step] = []

    def read(line: str) -> None:
        found = _STEP.search(line)  # a progress bar may stand before it
        if found:
            step = Step(int(found[1]), _number(found[2]))
            steps.append(step)
            on_step(step)
            if not math.isfinite(step.loss):
                raise OpenForgeError(f"the loss of step {step.number} is {step.loss}", hint="lower the learning rate")

    with TemporaryDirectory(prefix=".sft-", dir=dest.parent) as work:
        run_program(
            [*_program(settings.gpus), *overrides(rows, model, Path(work), row_count, settings)],
            step="teaching the policy",
            cwd=Path(work),  # hydra and the trackers write into the folder they start in
            env=_environment(settings),
            on_line=read,
        )
        result = Path(work) / f"global_step_{settings.steps}" / "huggingface"
        if len(steps) != settings.steps or not result.is_dir():
            raise InfraError(f"the trainer ended after {len(steps)} of {settings.steps} steps without saving a model")
        _keep_dtype(model, result)
        _keep_tokenizer(model, result)
        shutil.move(result, dest)
    return steps


def _keep_dtype(model: Path, result: Path) -> None:
    """veRL writes float32 weights beside a config that calls them bfloat16; what the model was before holds."""
    before = orjson.loads((model / "config.json").read_bytes())
    after = orjson.loads((result / "config.json").read_bytes())
    after["dtype"] = before.get("dtype") or before.get("torch_dtype") or "float32"
    (result / "config.json").write_bytes(orjson.dumps(after, option=orjson.OPT_INDENT_2))


_UNTAUGHT = ("tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt")


def _keep_tokenizer(model: Path, result: Path) -> None:
    """What teaching does not change is copied, not written anew: its hash still tells which rows are in its ids."""
    for pattern in (*_UNTAUGHT, "generation_config.json"):
        for file in filter(Path.is_file, model.glob(pattern)):
            shutil.copyfile(file, result / file.name)


# What torchrun would set for one process: without it a failure shows its own traceback, not torchrun's.
_ONE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
_ON_CPU = {
    **CPU_ENVIRONMENT,
    # Threads that spin while they wait make a busy machine ten times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "CUDA_VISIBLE_DEVICES": "",
}


def _program(gpus: int) -> list[str]:
    ranks = ["torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", "-m"] if gpus > 1 else []
    return [sys.executable, "-m", *ranks, "verl.trainer.sft_trainer"]


def _environment(settings: SftSettings) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "")
    return {
        **({} if settings.gpus > 1 else _ONE_PROCESS),
        **({} if settings.gpus else {**_ON_CPU, "OMP_NUM_THREADS": str(settings.threads)}),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), inherited])),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


_OPTIMIZERS = {
    "muon": {"optimizer_impl": "trainer.verl_plugins.muon", "optimizer": "MuonAdamW", "betas": "[0.9,0.98]"},
    "adamw": {"optimizer_impl": "torch.optim", "optimizer": "AdamW", "betas": "[0.9,0.999]"},
}


def overrides(rows: Path, model: Path, work: Path, row_count: int, settings: SftSettings) -> list[str]:
    """What veRL's SFT trainer is told, in hydra's form, to leave checkpoints in `work`."""
    epochs = math.ceil(settings.steps / (row_count // settings.batch_rows))
    compute = "bf16" if settings.gpus else "fp32"
    values: dict[str, Any] = {
        "data.train_files": rows.resolve(),
        "data.custom_cls.path": _ROOT / "trainer" / "verl_plugins" / "ids_dataset.py",
        "data.custom_cls.name": "IdsDataset",
        "data.train_batch_size": settings.batch_rows,
        "data.micro_batch_size_per_gpu": settings.micro_rows,
        "data.max_length": settings.max_length,
        "data.pad_mode": "no_padding",
        "data.use_dynamic_bsz": False,
        "data.num_workers": 0,
        "model.path": model.resolve(),
        "model.use_remove_padding": False,
        "+model.override_config.attn_implementation": "sdpa",
        "model.enable_gradient_checkpointing": settings.recompute,
        "engine.strategy": "fsdp2",
        "engine.model_dtype": "fp32",
        "+engine.mixed_precision": f"{{param_dtype:{compute},reduce_dtype:fp32,buffer_dtype:fp32}}",
        "engine.use_torch_compile": False,
        **{f"optim.{key}": value for key, value in _OPTIMIZERS[settings.optimizer].items()},
        "optim.lr": settings.lr,
        "optim.lr_warmup_steps": settings.warmup_steps,
        "optim.lr_scheduler_type": "cosine",
        "optim.min_lr_ratio": 0.05,
        "optim.weight_decay": 0.0,
        "trainer.device": "cuda" if settings.gpus else "cpu",
        "trainer.n_gpus_per_node": max(1, settings.gpus),
        "trainer.logger": "[console]",
        "trainer.total_epochs": epochs,
        "trainer.total_training_steps": settings.steps,
        "trainer.save_freq": settings.steps,
        "trainer.test_freq": -1,
        "trainer.default_local_dir": work.resolve(),
        "trainer.resume_mode": "disable",
        "checkpoint.save_contents": "[model,hf_model]",
    }
    return [f"{key}={value}" for key, value in values.items()]


def _number(text: str) -> float:
    """veRL prints numpy scalars by their repr on some versions: `np.float64(0.5)`."""
    return float(text.removeprefix("np.float64(").removesuffix(")"))
