"""Makes the starter policy out of the system itself: real harnesses, driven by the teacher, leave the demonstrations.

Teacher → recorder in record mode → journal → the store's SFT export → cut tokenizer → veRL. The parts do the work;
this file only holds them together, and refuses demonstrations that did not come out as planned.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pyarrow.parquet as pq

from cluster.attempt import RolloutSpec
from cluster.launch import run_rollouts
from cluster.orchestrator import Rollout
from openforge.cache import building
from openforge.config.models import Config, Policy, Run
from openforge.errors import OpenForgeError
from openforge.ids import new_run_id
from openforge.store.export import export
from openforge_tui.cli.output import run_async
from openforge_tui.policies import starter_description, starter_lessons, starter_place
from openforge_tui.teacher import teacher
from trainer.sft import Step
from trainer.starter.base import qwen3_tokenizer
from trainer.starter.recipe import Recipe
from trainer.starter.teach import read_rows, teach

Say = Callable[[str], None]
OnRollout = Callable[[Rollout], None]


def lessons(recipe: Recipe) -> list[RolloutSpec]:
    """What is demonstrated. An even sample is the solution and the odd one after it a near miss on the same start
    files: else what a file holds would tell the model whether to fail."""
    tasks, harnesses = starter_lessons(recipe)
    return [
        RolloutSpec(task, harness, sample, recipe.seed + sample // 2)
        for sample in range(2 * recipe.samples)
        for task in tasks
        for harness in harnesses
    ]


def make_starter(recipe: Recipe, say: Say, on_rollout: OnRollout, on_step: Callable[[Step], None]) -> Path:
    """The starter's folder; when it is not in the cache it is made, in some minutes on two cores.

    `starter.json` in it says what it was made of, `demonstrations.parquet` holds the recorded ids. Raises
    OpenForgeError. Not for use inside an event loop.
    """
    folder = starter_place(recipe)
    if folder.is_dir():
        return folder
    tokenizer = qwen3_tokenizer(say=say)
    with building(folder) as build, TemporaryDirectory(prefix=".lessons-", dir=folder.parent) as scratch:
        started_s = time.monotonic()
        demonstrations = build / "demonstrations.parquet"
        run_async(demonstrate(recipe, tokenizer, Path(scratch), demonstrations, say, on_rollout))
        shown_s = time.monotonic()
        rows = read_rows([demonstrations])
        say(f"teaching {len(rows)} demonstrations in {recipe.sft.steps} steps …")
        steps = teach(rows, tokenizer, Path(scratch) / "model", recipe, on_step)
        for file in (Path(scratch) / "model").iterdir():
            file.rename(build / file.name)
        told = {
            "made_of": starter_description(recipe),
            "made_with": {name: version(name) for name in ("verl", "torch", "transformers", "renderers")},
            "rows": len(rows),
            "loss": [round(step.loss, 4) for step in steps],
            "demonstrations_s": round(shown_s - started_s, 1),
            "teaching_s": round(time.monotonic() - shown_s, 1),
        }
        (build / "starter.json").write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    return folder


async def demonstrate(
    recipe: Recipe, tokenizer: Path, store_root: Path, dest: Path, say: Say, on_rollout: OnRollout
) -> None:
    """Let every harness do every task as the teacher says and write the recorded ids to the Parquet file `dest`.

    Raises OpenForgeError when a demonstration did not come out as planned.
    """
    specs = lessons(recipe)
    say(f"{len(specs)} demonstrations by {', '.join(recipe.harnesses)} …")
    run_id = new_run_id()
    async with teacher(recipe.task_refs) as url:
        config = Config(
            policy=Policy(model="teacher", engine="openai", base_url=url, tokenizer=str(tokenizer)),
            run=Run(
                tasks=recipe.task_refs,
                harnesses=recipe.harnesses,
                samples=2 * recipe.samples,
                mode="record",
                max_calls=12,
                time_limit_s=120,
                retries=2,
            ),
        )
        rollouts = await run_rollouts(config, store_root, specs, run_id=run_id, say=say, on_event=on_rollout)
    odd = [rollout for rollout in rollouts if rollout.reward != (1.0 if rollout.spec.sample % 2 == 0 else 0.0)]
    if odd:
        first = odd[0]
        raise OpenForgeError(
            f"{len(odd)} demonstrations did not come out as planned; {first.id} ended as {first.state} with reward "
            f"{first.reward}: {first.result.detail}",
            hint="openforge tasks validate",
        )
    export(store_root, run_id, "sft", dest)
    found = pq.read_metadata(dest).num_rows
    if found != len(specs):
        raise OpenForgeError(f"{len(specs)} demonstrations became {found} rows: a history was rewritten")
