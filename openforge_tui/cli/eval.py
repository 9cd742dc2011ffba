"""`openforge eval`: how well checkpoints do; a table by harness and checkpoint on stdout, the numbers in the store."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cluster.attempt import RolloutSpec
    from openforge.config import Config, Loaded
    from openforge.ids import RunId
    from openforge_tui.evaluate import Checkpoint
    from trainer.evaluation import Estimate, Report

_SUCCESS = ("success", "success_low", "success_high")


class Planned(NamedTuple):
    """One checkpoint, the configuration of its run and its rollouts."""

    checkpoint: "Checkpoint"
    config: "Config"
    specs: "list[RolloutSpec]"


class Evaluated(NamedTuple):
    """One checkpoint, its run and what came of it."""

    checkpoint: "Checkpoint"
    run_id: "RunId"
    report: "Report"


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate)


def evaluate(
    policy: Annotated[
        str | None, typer.Option("--policy", "--policies", help="Names, folders or RUN@STEP, with commas.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Task sets, tasks or folders, with commas.")] = None,
    harness: Annotated[
        str | None, typer.Option("--harness", "--harnesses", help="Harnesses or their folders, with commas.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Rollouts for each task and harness (default: trainer.eval_samples).")
    ] = None,
    k: Annotated[str | None, typer.Option("-k", help="k of pass@k and pass^k, with commas (default: 1,4,8).")] = None,
    seed: Annotated[int | None, typer.Option(help="Start files of sample n come from 1000000 + seed + n.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature (default: that of training).")] = None,
) -> int:
    """Evaluate checkpoints: success, pass@k (any of k) and pass^k (all of k), with 95 % intervals.

    Start files are ones that training never sees. RUN@STEP is a checkpoint of a training run, and everything is
    evaluated as that run was configured, but for what is typed. An error of ours is counted apart and is never a
    failure. Exit code 3 when nothing of a checkpoint could be graded.
    """
    typed: dict[str, object] = {
        "trainer.eval_tasks": tasks,
        "trainer.eval_harnesses": harness,
        "trainer.eval_samples": samples,
    }
    typed |= {"run.seed": seed, "policy.sampling.temperature": temperature}
    known = {key: str(value) for key, value in typed.items() if value is not None}
    settings.change(overrides={**settings.current().overrides, **known})
    loaded = settings.current().load_real()
    ks = None if k is None else _numbers(k)
    plan = _plan(loaded, policy, ks)
    done: list[Evaluated] = []
    try:
        output.run_async(_run(plan, loaded.store_root, ks, done))
    finally:  # what is known is worth showing, whatever ended the rest
        if done:
            _show(done)
    return 3 if any(one.report.overall.n == 0 for one in done) else 0


def _numbers(text: str) -> list[int]:
    from openforge.errors import UsageError

    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"-k {text}: expected whole numbers with commas", hint="for example -k 1,4,8") from None


def _plan(loaded: "Loaded", policies: str | None, ks: "Sequence[int] | None") -> list[Planned]:
    """Every checkpoint with its rollouts, so that what cannot be run is said before anything is."""
    from openforge.config import overridden
    from openforge.errors import UsageError
    from openforge_tui.evaluate import Checkpoint, evaluation_config, evaluation_specs, find_checkpoint
    from openforge_tui.verify_run import run_config
    from trainer.evaluation import check_plan

    config, store_root = loaded.config, loaded.store_root
    local = config.policy.engine == "vllm"
    names = [name for part in (policies or config.policy.model).split(",") if (name := part.strip())]
    if not names:
        raise UsageError(f"--policy {policies}: nothing is named", hint="openforge policy list")
    checkpoints = [find_checkpoint(store_root, name) if local else Checkpoint(name, name) for name in names]
    found = list({checkpoint.model: checkpoint for checkpoint in checkpoints}.values())
    if len(found) > 1 and local and config.policy.base_url:
        raise UsageError(
            f"the server at {config.policy.base_url} has one policy, and {len(found)} are to be evaluated",
            hint="name one, or leave policy.base_url out: then each is served here",
        )
    if run_id := next((checkpoint.run_id for checkpoint in found if checkpoint.run_id), None):
        config = overridden(run_config(store_root, run_id), settings.current().overrides)
        output.say(f"evaluating as run {run_id} was configured, but for what is typed")
    plan = []
    for checkpoint in found:
        mine = evaluation_config(config, checkpoint)
        specs = evaluation_specs(mine, checkpoint, loaded.project_dir)
        check_plan(ks or (), mine.run.samples, {spec.harness.name for spec in specs})
        plan.append(Planned(checkpoint, mine, specs))
    return plan


async def _run(plan: list[Planned], store_root: "Path", ks: "Sequence[int] | None", done: list[Evaluated]) -> None:
    """Evaluate one checkpoint after another; what is evaluated stands in `done` also when the next one fails."""
    from cluster.launch import engine_for
    from openforge.ids import new_run_id
    from openforge_tui.cli.run import follow
    from openforge_tui.evaluate import run_evaluation

    for checkpoint, config, specs in plan:
        run_id = new_run_id()
        async with engine_for(config, checkpoint.model_dir, output.say) as engine:
            output.say(f"{checkpoint.name}: run {run_id}, {len(specs)} rollouts; follow with `openforge status`")
            with follow(len(specs)) as on_event:
                report = await run_evaluation(
                    config,
                    store_root,
                    checkpoint,
                    specs,
                    engine,
                    run_id,
                    ks=ks,
                    say=output.say,
                    on_event=on_event,
                )
        done.append(Evaluated(checkpoint, run_id, report))
        _say_left_out(checkpoint.name, report, ks, config.run.samples)


def _say_left_out(name: str, report: "Report", ks: "Sequence[int] | None", samples: int) -> None:
    from trainer.evaluation import USUAL_KS

    wanted = USUAL_KS if ks is None else ks
    for harness, summary in report.harnesses.items():
        if left_out := [str(k) for k in wanted if k <= samples and k not in summary.pass_at]:
            output.say(f"{name}: no k of {', '.join(left_out)} for {harness}: errors left too few rollouts of a task")


def _show(done: list[Evaluated]) -> None:
    """The table, and where to look on."""
    ks = sorted({k for one in done for summary in one.report.harnesses.values() for k in summary.pass_at})
    passes = [f"{kind}_{k}" for kind in ("pass_at", "pass_hat") for k in ks]
    rows = [row for one in done for row in _rows(one)]
    if (settings.current().output or "table") == "table":
        shown = [{**row, **{name: _short(row.get(name)) for name in ("success", *passes)}} for row in rows]
        headers = {name: name.replace("_at_", "@").replace("_hat_", "^") for name in passes}
        columns = ["policy", "harness", "n", "errors", "success", "interval", *passes]
        output.emit(shown, columns, headers={"interval": "95 %", **headers})
    else:
        bounded = [f"{name}{end}" for name in passes for end in ("", "_low", "_high")]
        output.emit(rows, ["policy", "step", "harness", "run_id", "tasks", "n", "errors", *_SUCCESS, *bounded])
    for one in done:
        output.say(f"next: openforge rollouts {one.run_id}   ({one.checkpoint.name})")
    runs = ", ".join(f"'{one.run_id}'" for one in done)
    output.say(f'next: openforge sql "SELECT run_id, step, name, value FROM metrics WHERE run_id IN ({runs})"')


def _rows(one: Evaluated) -> list[dict[str, object]]:
    """A row a harness, and one of all."""
    rows = []
    for harness, summary in [*one.report.harnesses.items(), ("all", one.report.overall)]:
        row: dict[str, object] = {"policy": one.checkpoint.name, "step": one.checkpoint.step, "harness": harness}
        row |= {"run_id": one.run_id, "tasks": summary.tasks, "n": summary.n, "errors": summary.errors}
        if (success := summary.success) is not None:
            row |= _bounded("success", success) | {"interval": f"{success.low:.2f}–{success.high:.2f}"}
        for kind, estimates in (("pass_at", summary.pass_at), ("pass_hat", summary.pass_hat)):
            for k, estimate in estimates.items():
                row |= _bounded(f"{kind}_{k}", estimate)
        rows.append(row)
    return rows


def _bounded(name: str, estimate: "Estimate") -> dict[str, object]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _short(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value
