"""Makes the starter policy out of the system itself: real harnesses, driven by the teacher, leave the demonstrations.

Teacher → recorder in record mode → journal → the store's SFT export → cut tokenizer → veRL. The parts do the work;
this file only holds them together, and refuses demonstrations that did not come out as planned.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow.parquet as pq

from cluster.attempt import RolloutSpec
from cluster.orchestrator import Orchestrator, Rollout
from cluster.runtimes.process import ProcessRuntime
from openforge.config.models import Config, Policy, Run
from openforge.errors import InfraError, OpenForgeError
from openforge.ids import RunId, new_run_id
from openforge.store.export import export
from openforge_tui.cli.output import run_async
from openforge_tui.policies import starter_description, starter_lessons, starter_place
from trainer.cache import building
from trainer.sft import Step
from trainer.starter.base import qwen3_tokenizer
from trainer.starter.recipe import Recipe
from trainer.starter.teach import read_rows, teach

_ROOT = Path(__file__).resolve().parent.parent
_READY_S = 60.0

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
    tokenizer = qwen3_tokenizer(on_line=say)
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
    async with _teacher(recipe) as url:
        rollouts = await _record(recipe, specs, url, tokenizer, store_root, run_id, say, on_rollout)
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


async def _record(
    recipe: Recipe,
    specs: list[RolloutSpec],
    url: str,
    tokenizer: Path,
    store_root: Path,
    run_id: RunId,
    say: Say,
    on_rollout: OnRollout,
) -> list[Rollout]:
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
    run_dir = store_root / "runs" / run_id
    recorder: dict[str, Any] = {
        "run_id": run_id,
        "run_dir": str(run_dir),
        "mode": "record",
        "engine": {"kind": "openai", "url": url, "model": "teacher"},
        "model_dir": str(tokenizer),
        "renderer": "qwen3",
        "enable_thinking": config.policy.enable_thinking,
        "ca_dir": str(store_root / "ca"),
    }
    runtime = ProcessRuntime(config.sandbox.isolation)
    async with Orchestrator(config, run_id, run_dir, runtime, recorder, on_event=on_rollout, say=say) as orchestrator:
        return await orchestrator.run_all(specs)


@asynccontextmanager
async def _teacher(recipe: Recipe) -> AsyncIterator[str]:
    """The teacher as a child process; its base URL. It ends when its input closes, whatever happens to us."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy_addons.teacher"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(_ROOT)},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(orjson.dumps({"tasks": recipe.task_refs}) + b"\n")
        line = await asyncio.wait_for(process.stdout.readline(), _READY_S)
        if not line:
            raise InfraError("the teacher did not start; what it printed stands above")
        yield str(orjson.loads(line)["url"])
    finally:
        process.stdin.close()
        await process.wait()
