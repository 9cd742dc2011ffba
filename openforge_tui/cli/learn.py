"""`openforge learn`: a small policy learns inside a real harness while you watch; the curve, then before and after."""

import time
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openforge_tui.cli import output, settings
from openforge_tui.cli.prepare import prepare

if TYPE_CHECKING:
    from openforge_tui.train import Training

_MARKERS = ("braille", "+", "x", "o")  # of harnesses: a curve without colours must still tell them apart
_CHANGED = """
SELECT b.task, b.harness, b.rollout_id AS before, a.rollout_id AS after
FROM rollouts b JOIN rollouts a USING (run_id, task, harness, seed)
WHERE b.purpose = 'eval' AND a.purpose = 'eval' AND b.step = 0 AND a.step = ? AND b.reward < 1 AND a.reward >= 1
QUALIFY row_number() OVER (PARTITION BY b.task, b.harness ORDER BY b.seed) = 1 ORDER BY b.task, b.harness"""


def register(app: typer.Typer) -> None:
    app.command()(learn)


def learn(
    harness: Annotated[str, typer.Option("--harness", "--harnesses", help="Harnesses to learn in.")] = "react",
    seed: Annotated[int, typer.Option(help="Of tasks and start files.")] = 0,
    recipe: Annotated[str, typer.Option(help="A recipe by name or file.")] = "tiny-cpu",
    steps: Annotated[int | None, typer.Option(help="Training steps; the recipe's own when left out.")] = None,
) -> int:
    """Teach the starter policy by reinforcement inside a real harness on this machine, with veRL.

    About a quarter of an hour on two cores, once everything is installed and the starter is made. Ends with one line:
    `learn: BEFORE -> AFTER (n, interval) in SECONDS s`. Exit code 130 when it was stopped.
    """
    from openforge.ids import new_run_id
    from openforge_tui.cli.train import run_shown
    from openforge_tui.train import Training
    from trainer.settings import check_trainable

    typed = {"trainer.recipe": recipe, "run.harnesses": harness, "run.seed": str(seed)}
    if steps is not None:
        typed["trainer.steps"] = str(steps)
    settings.change(overrides={**typed, **settings.current().overrides})
    loaded = settings.current().load_real()
    check_trainable(loaded.config)
    model_dir = prepare(loaded.config)
    assert model_dir is not None  # else it would not be trainable
    began_s = time.monotonic()
    training = Training(loaded.config, loaded.store_root, model_dir, new_run_id(), loaded.project_dir)
    code = run_shown(training, table=False)
    return code or _report(training, time.monotonic() - began_s)


def _report(training: "Training", took_s: float) -> int:
    """The curve, what changed, the last line. Exit code 3 when there was no evaluation to compare."""
    numbers = _metrics(training)
    steps = sorted(step for name, step in numbers if name == "train.reward")
    evaluated = sorted(step for name, step in numbers if name == "eval.success")
    if len(evaluated) < 2:
        output.say("there are no evaluations before and after to compare; next: openforge rollouts")
        return 3
    first, last = evaluated[0], evaluated[-1]
    if steps:
        output.say(curve(training, numbers, steps))
    changed = _changed(training, last)
    low, high = numbers["eval.success.low", last], numbers["eval.success.high", last]
    count = int(numbers["eval.n", last])
    before, after = numbers["eval.success", first], numbers["eval.success", last]
    fmt = settings.current().output or "table"
    if fmt != "table":
        told = {"run_id": training.run_id, "before": before, "after": after, "n": count, "low": low, "high": high}
        output.emit_object({**told, "seconds": round(took_s), "changed": changed}, fmt)
        return 0
    output.emit(changed, ("task", "harness", "before", "after"), title="What it can do now")
    output.say(
        f"next: openforge show, with one of the rollouts above; openforge eval --policy {training.run_id}@{last}"
    )
    print(f"learn: {before:.2f} -> {after:.2f} ({count}, [{low:.2f}, {high:.2f}]) in {took_s:.0f} s", flush=True)
    return 0


def _metrics(training: "Training") -> dict[tuple[str, int], float]:
    from openforge.store.connect import query

    rows = query(training.store_root, "SELECT name, step, value FROM metrics", runs=[training.run_id])
    return {(row["name"], row["step"]): row["value"] for row in rows}


def _changed(training: "Training", last: int) -> list[dict[str, Any]]:
    """One rollout a task that failed before and succeeds now, from the same start files."""
    from openforge.store.connect import query

    return query(training.store_root, _CHANGED, [last], runs=[training.run_id])


def curve(training: "Training", numbers: dict[tuple[str, int], float], steps: Sequence[int]) -> str:
    """Success in training by step and harness, evaluations as points, as text for a terminal."""
    from shutil import get_terminal_size

    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(min(100, get_terminal_size().columns), 18)
    for harness, marker in zip(training.config.run.harnesses, cycle(_MARKERS), strict=False):
        name = f"train.success.{harness}"
        known = [step for step in steps if (name, step) in numbers]
        line = figure.signal(known, [numbers[name, step] for step in known], marker=marker)
        figure.draw(line.lines().label(harness))
    evaluated = sorted(step for name, step in numbers if name == "eval.success")
    points = figure.signal(evaluated, [numbers["eval.success", step] for step in evaluated], marker="●")
    figure.draw(points.label("evaluation"))
    figure.ruler("x").ticks(range(0, steps[-1] + 1, 1 + steps[-1] // 12))
    figure.ruler("y").lim(0, 1)
    figure.legend(x=steps[-1], y=0, ha="right", va="bottom", relative=True)  # where what has learned is not
    figure.title("success by training step")
    return str(figure.build())
