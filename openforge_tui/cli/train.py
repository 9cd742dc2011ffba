"""`openforge train`: GRPO on veRL with rollouts in real harnesses; progress on stderr, a row a step on stdout."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openforge.errors import UsageError
from openforge.store.training import STEP_COLUMNS as COLUMNS
from openforge.store.training import step_row
from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from openforge_tui.train import Training


def register(app: typer.Typer) -> None:
    app.command()(train)


def train(
    recipe: Annotated[str | None, typer.Option(help="A recipe by name or file; see trainer/recipes.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Task sets, tasks or folders, with commas.")] = None,
    harness: Annotated[
        str | None, typer.Option("--harness", "--harnesses", help="Harnesses or their folders, with commas.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="What is trained: a name or a model folder.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the plan: tasks, harnesses and start files.")] = None,
    mode: Annotated[str | None, typer.Option(help="sync or separate_async.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run from its last checkpoint.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print veRL's whole configuration and stop.")] = False,
) -> int:
    """Train the policy inside the real harnesses; its new weights answer their next calls.

    Ctrl-C ends it at the end of the step under way, with a checkpoint; twice, at once.
    """
    typed = {
        "trainer.recipe": recipe,
        "run.tasks": tasks,
        "run.harnesses": harness,
        "policy.model": policy,
        "trainer.steps": steps,
        "run.seed": seed,
        "trainer.mode": mode,
    }
    known = {key: str(value) for key, value in typed.items() if value is not None}
    settings.change(overrides={**settings.current().overrides, **known})
    if resume:
        _refuse_changes(steps)
    training = _resumed(resume, steps) if resume else _new()
    if dry_run:
        return _print_config(training)
    return run_shown(training)


def _new() -> "Training":
    from openforge.ids import new_run_id
    from openforge_tui.policies import resolve_policy
    from openforge_tui.train import Training

    loaded = settings.current().load_real()
    model_dir = resolve_policy(loaded.config.policy.model)
    return Training(loaded.config, loaded.store_root, model_dir, new_run_id(), loaded.project_dir)


def _refuse_changes(steps: int | None) -> None:
    """What would be ignored is an error: a run goes on as it began."""
    allowed = {"store.path"} | ({"trainer.steps"} if steps is not None else set())
    typed = settings.current()
    if changed := [*sorted(typed.overrides.keys() - allowed), *(["--target"] if typed.target else [])]:
        raise UsageError(
            f"a run that goes on keeps its configuration: {', '.join(changed)} cannot change",
            hint="only --steps can; leave out --resume for a new run",
        )


def _resumed(name: str, steps: int | None) -> "Training":
    """The run as it was configured, whatever openforge.toml says by now; only the number of steps may change."""
    from openforge.ids import RunId
    from openforge.store.connect import find_run
    from openforge_tui.train import Training, first_weights, trainer_folder
    from openforge_tui.verify_run import run_config
    from trainer.checkpoints import checkpoint_step, last_checkpoint

    loaded = settings.current().load()
    run_id = find_run(loaded.store_root, name)
    folder = trainer_folder(loaded.store_root, run_id)
    config = run_config(loaded.store_root, run_id)
    if steps is not None:
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"steps": steps})})
    training = Training(config, loaded.store_root, first_weights(folder), RunId(run_id), loaded.project_dir)
    last = last_checkpoint(training.folder)
    if last is not None and checkpoint_step(last) >= config.trainer.steps:
        raise UsageError(f"{run_id} has made all of its {config.trainer.steps} steps", hint="more of them: --steps N")
    return training


def _print_config(training: "Training") -> int:
    import subprocess
    import sys

    from openforge_tui.train import verl_environment

    argv = [sys.executable, "-W", "ignore", "-P", "-m", "trainer.check_config", *training.overrides()]
    told = subprocess.run(argv, env=verl_environment(training.config), capture_output=True, text=True)
    if told.returncode:
        raise UsageError(f"veRL does not take this configuration:\n{told.stderr.strip()}", hint="openforge config show")
    print(told.stdout, end="")
    return 0


def run_shown(training: "Training", *, table: bool = True) -> int:
    """Train with progress on stderr; `table`: the steps on stdout at the end. Exit code 130 when it was stopped before
    its last step."""
    from openforge_tui.train import Stop
    from openforge_tui.train import train as run
    from trainer.checkpoints import checkpoint_step, last_checkpoint

    rows: list[dict[str, Any]] = []
    stop = Stop()
    output.say(f"run {training.run_id}: training {training.config.policy.model} inside {_harnesses(training)}")
    with _Shown(training.config.trainer.steps, rows) as shown:

        def finish() -> bool:
            asked = stop.ask()
            if asked:
                output.say("stopping at the end of this step, with a checkpoint; once more stops at once")
            return asked

        last = output.run_async(run(training, output.say, shown.event, stop), finish)
    if table:
        output.emit(rows, COLUMNS)
    steps = training.config.trainer.steps
    if last < steps:
        output.say(f"stopped after step {last} of {steps}; it goes on with: openforge train --resume {training.run_id}")
        return 130
    if rows:
        output.say(f"done: {steps} steps, the last with {step_line(rows[-1])}")
    checkpoint = last_checkpoint(training.folder)
    if table and checkpoint is not None:
        output.say(f"next: openforge eval --policy {training.run_id}@{checkpoint_step(checkpoint)}")
    return 0


def _harnesses(training: "Training") -> str:
    return ", ".join(training.config.run.harnesses)


class _Shown:
    """One line a step, one an evaluation; a bar on a terminal."""

    def __init__(self, steps: int, rows: list[dict[str, Any]]) -> None:
        self._steps, self._rows = steps, rows

    def __enter__(self) -> "_Shown":
        from openforge_tui.cli.progress import progress

        self._context = progress("steps", self._steps)
        self._progress = self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def event(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "starting":
                output.say(f"trainer: starting {event['what']} …")
            case "ready":
                left = event["steps"] - event["step"]
                output.say(f"trainer: ready, {left} steps to go")
                self._progress.phase("steps", left)
                self._rows[:] = [row for row in self._rows if row["step"] <= event["step"]]  # the others come again
            case "evaluating":
                output.say(f"trainer: evaluating at step {event['step']} …")
            case "evaluation":
                output.say(f"evaluation at step {event['step']}: {evaluation_line(event['metrics'])}")
            case "step":
                row = step_row(event["step"], event["metrics"])
                self._rows.append(row)
                self._progress.step(step_line(row))


def step_line(row: Mapping[str, Any]) -> str:
    return f"reward {row['reward']:.2f} ({row['success']}), {row['rollouts']} rollouts in {row['seconds']:g} s"


def evaluation_line(metrics: Mapping[str, float]) -> str:
    low, high = metrics.get("eval.success.low"), metrics.get("eval.success.high")
    interval = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    return f"success {metrics.get('eval.success', 0):.2f}{interval} of {metrics.get('eval.n', 0):.0f} rollouts"
