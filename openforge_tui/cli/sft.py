"""`openforge sft`: teaches a model the successes of chosen runs. Does not know how rows are chosen or taught."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from pathlib import Path

    from openforge_tui.sft import Choice, Teaching
    from trainer.selection import Selection
    from trainer.sft import SftSettings, Step

COLUMNS = ("outcome", "rollouts", "rows")
_LINES = 20  # of progress, at most


class Optimizer(StrEnum):
    ADAMW = "adamw"
    MUON = "muon"


def register(app: typer.Typer) -> None:
    app.command()(sft)


def sft(
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids, prefixes, `latest` (default) or `all`.")] = None,
    policy: Annotated[str | None, typer.Option(help="The model to teach (default: policy.model).")] = None,
    out: Annotated[str | None, typer.Option(help="Name or folder of the new policy.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Only rows with this, e.g. \"harness = 'pi'\": columns of rollouts and samples.")
    ] = None,
    sql: Annotated[str | None, typer.Option(help="Only rollouts of this query: SELECT rollout_id …")] = None,
    per_task: Annotated[int | None, typer.Option(min=1, help="Most rollouts of a task, fair over harnesses.")] = None,
    min_reward: Annotated[float, typer.Option(help="Least reward of a rollout.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Draws which rollouts of a task are taken.")] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2, help="A longer row (tokens) is an error (default: what the model cannot take is left out)."
        ),
    ] = None,
    epochs: Annotated[float, typer.Option(min=0.01, help="How often each row is seen.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps, instead of epochs.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows of a step (default: 8, or all when fewer).")] = None,
    lr: Annotated[float | None, typer.Option(min=0, help="Learning rate (default: adamw 2e-5, muon 1e-3).")] = None,
    optimizer: Annotated[Optimizer, typer.Option(help="muon suits tiny models.")] = Optimizer.ADAMW,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the trainer on the CPU.")] = 2,
    gpus: Annotated[int | None, typer.Option(min=0, help="0 = the CPU (default: trainer.gpus).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be taught.")] = False,
) -> None:
    """Teach a model the successes of runs: supervised fine-tuning on the ids as they were recorded.

    Prints what was taken and why everything else was not. The new policy is a folder in Hugging Face's layout; its
    openforge.json says what it was made from.
    """
    from openforge.errors import UsageError
    from openforge_tui import policies, train_set
    from openforge_tui.sft import Choice, Teaching, check, choose

    loaded = settings.current().load()
    if not out and not dry_run:
        raise UsageError("where shall the new policy be?", hint="--out NAME, or --dry-run to look first")
    dest = policies.new_place(out) if out else None
    model_dir = policies.resolve_policy(policy or loaded.config.policy.model)
    choice = Choice(_run_ids(loaded.store_root, runs or ["latest"]), where, sql, min_reward, per_task, seed, max_length)
    gpus = loaded.config.trainer.gpus if gpus is None else gpus
    teaching = Teaching(epochs, steps, batch, lr, optimizer.value, threads, gpus)
    selection = choose(loaded.store_root, model_dir, choice)
    output.emit([line._asdict() for line in selection.outcomes], COLUMNS)
    check(selection, choice, model_dir)
    if dry_run or dest is None:
        return
    if train_set.missing():
        raise UsageError("teaching a model needs the train set", hint="./just train-set")
    _teach(loaded.store_root, model_dir, dest, selection, choice, teaching)
    output.say(f"policy: {dest}\nnext: openforge run --policy {out}")


def _run_ids(store_root: "Path", typed: list[str]) -> tuple[str, ...]:
    from openforge.store.connect import find_run
    from openforge.store.snapshot import known_runs

    if "all" in typed:
        return tuple(known_runs(store_root))
    return tuple(sorted({find_run(store_root, run) for run in typed}))


def _teach(
    store_root: "Path", model_dir: "Path", dest: "Path", selection: "Selection", choice: "Choice", teaching: "Teaching"
) -> None:
    from openforge_tui.cli.progress import progress
    from openforge_tui.sft import make_policy

    with progress("rows", len(selection.rows)) as shown:
        every, shown_steps, total = 1, 0, 0

        def on_start(fixed: "SftSettings") -> None:
            nonlocal every, total
            every, total = max(1, fixed.steps // _LINES), fixed.steps
            shown.step(f"of at most {fixed.max_length} tokens", len(selection.rows))
            shown.phase("teaching", total)
            output.say(f"{total} steps of {fixed.batch_rows} rows, {fixed.optimizer}, lr {fixed.lr:g} …")

        def on_step(step: "Step") -> None:
            nonlocal shown_steps
            if step.number % every == 0 or step.number == total:
                shown.step(f"loss {step.loss:.4f}", step.number - shown_steps)
                shown_steps = step.number

        make_policy(store_root, model_dir, dest, selection, choice, teaching, on_start, on_step)
