"""Makes a policy from what policies did: the successes of chosen runs are taught to a model.

Store → candidates → selection → rows of ids → veRL. The parts do the work; this file holds them together and writes
down what the new policy was made from. Long work: nothing here belongs into an event loop.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from openforge.errors import OpenForgeError, UsageError
from openforge.store.export import export_rows
from openforge_tui.policies import ORIGIN
from openforge_tui.vocabulary import model_limits, same_vocabularies
from trainer.candidates import read_candidates
from trainer.selection import Rules, Selection, select
from trainer.sft import SftSettings, Step, run_sft
from trainer.starter.cut import Row, cut_row

_MICRO_TOKENS = 2048  # of one pass through the model, unless a single row is longer
_LR = {"adamw": 2e-5, "muon": 1e-3}
_BATCH_ROWS = 8


@dataclass(frozen=True)
class Choice:
    """What is to be taught. `where` and `sql` are a person's SQL (see trainer/candidates.py); a row longer than
    `max_length` tokens is an error, without it rows longer than the model's length are left out."""

    runs: tuple[str, ...]
    where: str | None = None
    sql: str | None = None
    min_reward: float = 1.0
    per_task: int | None = None
    seed: int = 0
    max_length: int | None = None


@dataclass(frozen=True)
class Teaching:
    """How it is taught; None = as fits the rows and the optimizer."""

    epochs: float = 3
    steps: int | None = None
    batch: int | None = None
    lr: float | None = None
    optimizer: Literal["muon", "adamw"] = "adamw"
    threads: int = 2
    gpus: int = 0


def choose(store_root: Path, model_dir: Path, choice: Choice) -> Selection:
    """What of the runs is taught to the model in `model_dir`. Raises UsageError for wrong SQL or a length that the
    model does not have, ConfigError for a folder that is no model."""
    limits = model_limits(model_dir)
    if choice.max_length is not None and choice.max_length > limits.max_length:
        raise UsageError(f"{model_dir.name} has no more than {limits.max_length} tokens", hint="lower --max-length")
    candidates = read_candidates(store_root, choice.runs, where=choice.where, sql=choice.sql)
    hashes = {row.vocab for candidate in candidates for row in candidate.rows if row.vocab is not None}
    rules = Rules(
        vocabs=same_vocabularies(store_root, hashes, model_dir),
        vocab_size=limits.vocab_size,
        max_length=limits.max_length if choice.max_length is None else sys.maxsize,  # an error, see `check`
        min_reward=choice.min_reward,
        per_task=choice.per_task,
        seed=choice.seed,
    )
    return select(candidates, rules)


def check(selection: Selection, choice: Choice, model_dir: Path) -> None:
    """Raise UsageError when there is nothing to teach or a row is longer than the person allows."""
    if not selection.lessons:
        reasons = selection.outcomes[1:-1]
        if any(line.outcome == "recorded with another tokenizer" for line in reasons):
            raise UsageError(
                f"the ids of these runs mean something else to {model_dir.name}: it has another tokenizer",
                hint="teach the policy they were recorded with (`openforge runs`), or one made from it",
            )
        why = f": {reasons[0].outcome}" if reasons else ""
        raise UsageError(f"nothing is left to teach{why}", hint="the table says why; choose other runs or conditions")
    longest = max(selection.rows, key=lambda row: row.length)
    if choice.max_length is not None and longest.length > choice.max_length:
        raise UsageError(
            f"the row {longest.sample_id} has {longest.length} tokens, --max-length allows {choice.max_length}",
            hint=f'--where "len(token_ids) <= {choice.max_length}" leaves such rows out',
        )


def make_policy(
    store_root: Path,
    model_dir: Path,
    dest: Path,
    selection: Selection,
    choice: Choice,
    teaching: Teaching,
    on_start: Callable[[SftSettings], None] = lambda settings: None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> list[Step]:
    """Teach the selection to a copy of the model; the new folder `dest` appears whole, with its origin in it.

    Raises OpenForgeError.
    """
    started_s = time.monotonic()
    dest.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{dest.name}-", dir=dest.parent) as folder:
        work = Path(folder)
        export_rows(store_root, choice.runs, _keys(selection), work / "recorded.parquet")
        lengths = write_rows(work / "recorded.parquet", work / "rows.parquet", model_dir)
        settings = settings_for(lengths, teaching)
        on_start(settings)
        steps = run_sft(work / "rows.parquet", model_dir, work / "model", settings, on_step)
        told = {
            "made_by": "openforge sft",
            "model": str(model_dir),
            "choice": asdict(choice),
            "outcomes": [line._asdict() for line in selection.outcomes],
            "rollouts": [lesson.candidate.rollout_id for lesson in selection.lessons],
            "rows": len(lengths),
            "settings": asdict(settings),
            "loss": [round(step.loss, 4) for step in steps],
            "seconds": round(time.monotonic() - started_s, 1),
            "made_with": {name: version(name) for name in ("openforge", "verl", "torch", "transformers")},
        }
        (work / "model" / ORIGIN).write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
        try:
            os.rename(work / "model", dest)
        except OSError as error:
            raise OpenForgeError(f"{dest} cannot be written: {error.strerror}", hint="choose another --out") from None
    return steps


def settings_for(lengths: Sequence[int], teaching: Teaching) -> SftSettings:
    """The trainer's settings for rows of these lengths (tokens). Raises UsageError for a batch that the rows or the
    GPUs do not allow."""
    ranks = max(1, teaching.gpus)
    batch = teaching.batch or max(ranks, min(_BATCH_ROWS, len(lengths)) // ranks * ranks)
    if batch > len(lengths):
        raise UsageError(
            f"a step cannot take {batch} rows of {len(lengths)}", hint="lower --batch, or choose more runs"
        )
    if batch % ranks:
        raise UsageError(
            f"{ranks} GPUs cannot share {batch} rows a step", hint=f"--batch {ranks * (batch // ranks + 1)}"
        )
    steps = teaching.steps or max(1, round(teaching.epochs * len(lengths) / batch))
    longest = max(lengths)
    fit = max(1, _MICRO_TOKENS // longest)
    return SftSettings(
        steps=steps,
        batch_rows=batch,
        micro_rows=max(rows for rows in range(1, batch + 1) if batch % (ranks * rows) == 0 and rows <= fit),
        lr=_LR[teaching.optimizer] if teaching.lr is None else teaching.lr,
        warmup_steps=math.ceil(steps / 20),
        max_length=longest,
        threads=teaching.threads,
        optimizer=teaching.optimizer,
        recompute=longest > _MICRO_TOKENS // 2,
        gpus=teaching.gpus,
    )


def write_rows(recorded: Path, dest: Path, model_dir: Path) -> list[int]:
    """Write the columns that the trainer reads; returns each row's length in tokens.

    For a model all of whose layers see a short window, what no learned token can see is left out: the loss is the same.
    """
    layers, window = _windows(model_dir)
    lengths: list[int] = []
    with pq.ParquetFile(recorded) as file, pq.ParquetWriter(dest, _ROWS) as writer:
        for batch in file.iter_batches(64, columns=_ROWS.names):
            rows = [Row(row["input_ids"], row["loss_mask"]) for row in batch.to_pylist()]
            if window:
                rows = [cut_row(row, layers, window) for row in rows]
            lengths += [len(row.input_ids) for row in rows]
            writer.write_batch(pa.RecordBatch.from_pylist([row._asdict() for row in rows], _ROWS))
    return lengths


_ROWS = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int32()))])


def _windows(model_dir: Path) -> tuple[int, int]:
    """Layers and their window when every one slides and positions are relative; (0, 0) when a token may see all."""
    config: dict[str, Any] = orjson.loads((model_dir / "config.json").read_bytes())
    kinds, window = config.get("layer_types") or [], config.get("sliding_window")
    if set(kinds) == {"sliding_attention"} and isinstance(window, int) and "rope_parameters" in config:
        return len(kinds), window
    return 0, 0


def _keys(selection: Selection) -> list[tuple[str, str]]:
    return [(lesson.candidate.rollout_id, row.sample_id) for lesson in selection.lessons for row in lesson.rows]
