"""`openforge demo`: from nothing to a table, with everything that is missing made on the way."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openforge_tui.cli import output, settings
from openforge_tui.cli.prepare import prepare

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.orchestrator import Rollout
    from openforge.config import Config
    from openforge.ids import RunId
    from openforge_tui.verify import Report

# What is most worth knowing first: a narrow terminal shows no more.
_COLUMNS = (
    *("harness", "rollouts", "reward", "calls", "prompt_tokens", "sampled_tokens", "samples_a_rollout"),
    *("breaks", "errors", "failed", "graded"),
)
_HEADERS = {
    "prompt_tokens": "prompt",
    "sampled_tokens": "sampled",
    "samples_a_rollout": "samples each",
    "mean_logprob": "logprob",
    "least_likely": "least likely",
    "its_probability": "at",
}


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    tasks: Annotated[str, typer.Option(help="Task sets or tasks, with commas.")] = "desk",
    harness: Annotated[str, typer.Option("--harness", "--harnesses", help="Harnesses, with commas.")] = "",
    samples: Annotated[int, typer.Option(min=1, help="Rollouts for each task and harness.")] = 3,
) -> int:
    """Run real harnesses against the starter policy on this machine, and show what became of every token.

    Installs what is missing and makes the policy the first time (up to 25 minutes on two cores), about three minutes
    after that. Exit code 3 when no rollout could be graded, 5 when `verify` finds a wrong token.
    """
    from openforge.ids import new_run_id
    from openforge_tui import demo as questions
    from openforge_tui.cli.run import check_end

    began_s = time.monotonic()
    typed = {**questions.OVERRIDES, "run.tasks": tasks, "run.samples": str(samples)}
    if harness:
        typed["run.harnesses"] = harness
    settings.change(overrides={**typed, **settings.current().overrides})
    loaded = settings.current().load_real()
    config, store_root = loaded.config, loaded.store_root
    model_dir = prepare(config)
    run_id = new_run_id()
    rollouts, report = output.run_async(_run(config, store_root, model_dir, run_id))
    check_end(store_root, run_id, rollouts)
    if report is None:
        output.emit(questions.by_harness(store_root, run_id), _COLUMNS, headers=_HEADERS)
        output.say(f"no rollout came to a model call; next: openforge rollouts {run_id}")
        return 3
    _show(store_root, run_id, report)
    output.say(f"\n{report.summary()}\n\nall of it took {time.monotonic() - began_s:.0f} s; next:")
    best = max(rollouts, key=lambda rollout: (rollout.reward or 0.0, rollout.spec.harness.name == "react"))
    openforge = output.command()
    output.say(f"  {openforge}                    the app: all of this, and every token")
    output.say(f"  {openforge} show {best.id}")
    output.say(f"  {openforge} rollouts {run_id}")
    output.say(f'  {openforge} sql "SELECT task, avg(reward) FROM rollouts GROUP BY task ORDER BY 2"')
    output.say(f"  {openforge} export {run_id} --html")
    output.say(f"  {openforge} learn")
    if report.failures:
        from openforge_tui.cli.verify import check

        check(report)
    return 0 if any(rollout.reward is not None for rollout in rollouts) else 3


async def _run(
    config: "Config", store_root: "Path", model_dir: "Path | None", run_id: "RunId"
) -> "tuple[list[Rollout], Report | None]":
    """The rollouts and then the proof, while one and the same server runs; none where nothing was sampled."""
    from cluster.launch import engine_for, make_specs
    from openforge_tui.cli.run import run_shown
    from openforge_tui.verify_run import read_samples, verify_run

    specs = make_specs(config, settings.current().project)
    async with engine_for(config, model_dir, output.say) as engine:
        rollouts = await run_shown(config, store_root, specs, model_dir, engine, run_id)
        sampled = any(read_samples(store_root, run_id))
        return rollouts, await verify_run(store_root, run_id, output.say) if sampled else None


def _show(store_root: "Path", run_id: str, report: "Report") -> None:
    """Three answers on stdout: tables one after another, or one object with -o json."""
    from openforge_tui import demo as questions

    harnesses, tokens = questions.by_harness(store_root, run_id), questions.tokens(store_root, run_id)
    proof: dict[str, Any] = {
        "samples": len(report.rows),
        "sampled_tokens": report.sampled,
        "max_diff": report.max_diff,
        "mean_diff": report.mean_diff,
        "failures": len(report.failures),
    }
    fmt = settings.current().output or "table"
    if fmt != "table":
        output.emit_object({"run_id": run_id, "harnesses": harnesses, "tokens": tokens, "verify": proof}, fmt)
        return
    output.say("\nby harness")
    output.emit(harnesses, _COLUMNS, headers=_HEADERS)
    output.say(f'\nhow sure was the policy? {output.command()} sql "{questions.tokens_sql(run_id)}"')
    output.emit(tokens, headers=_HEADERS)
