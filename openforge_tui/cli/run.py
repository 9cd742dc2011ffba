"""`openforge run`: tasks x harnesses x samples against the policy; progress on stderr, a table by harness on stdout."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cluster.attempt import RolloutSpec
    from cluster.launch import Engine
    from cluster.orchestrator import Rollout
    from openforge.config import Config
    from openforge.ids import RunId

COLUMNS = ("harness", "rollouts", "done", "failed", "error", "cancelled", "reward", "calls", "samples", "seconds")


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    tasks: Annotated[str | None, typer.Option(help="Task sets, tasks or folders, with commas.")] = None,
    harness: Annotated[
        str | None, typer.Option("--harness", "--harnesses", help="Harnesses or their folders, with commas.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Rollouts for each task and harness.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy: a name, a model folder, a provider's model.")] = None,
    seed: Annotated[int | None, typer.Option(help="Start files of sample n come from seed + n.")] = None,
) -> int:
    """Run tasks with harnesses against the policy, and keep every token.

    Exit code 0 when rollouts were graded, 3 when every one ended as error, 130 when the run was cancelled from
    elsewhere (`openforge cancel`, the app).
    """
    from cluster.launch import make_specs
    from openforge.ids import new_run_id
    from openforge_tui.policies import resolve_policy

    typed = {"run.tasks": tasks, "run.harnesses": harness, "run.samples": samples, "policy.model": policy}
    typed["run.seed"] = seed
    known = {key: str(value) for key, value in typed.items() if value is not None}
    settings.change(overrides={**settings.current().overrides, **known})
    loaded = settings.current().load()
    config = loaded.config
    specs = make_specs(config, loaded.project_dir)
    local = config.policy.engine == "vllm"
    model_dir = resolve_policy(config.policy.model) if local else None
    run_id = new_run_id()
    rollouts, started = output.run_async(_run(config, loaded.store_root, specs, model_dir, run_id))
    output.emit(by_harness(rollouts), COLUMNS)
    check_end(loaded.store_root, run_id, rollouts)
    failed = all(rollout.state == "error" for rollout in rollouts)
    if not failed:
        output.say(f"done: {in_short(rollouts)}")
    output.say(f"next: openforge rollouts {run_id}")
    if started:
        output.say("keep the policy warm for the next run: openforge policy serve" + (f" {policy}" if policy else ""))
    return 3 if failed else 0


async def _run(
    config: "Config", store_root: "Path", specs: "Sequence[RolloutSpec]", model_dir: "Path | None", run_id: "RunId"
) -> "tuple[list[Rollout], bool]":
    """The rollouts, and whether a server was started for them."""
    from cluster.launch import engine_for

    async with engine_for(config, model_dir, output.say) as engine:
        return await run_shown(config, store_root, specs, model_dir, engine, run_id), engine.started


async def run_shown(
    config: "Config",
    store_root: "Path",
    specs: "Sequence[RolloutSpec]",
    model_dir: "Path | None",
    engine: "Engine",
    run_id: "RunId",
) -> "list[Rollout]":
    """Run `specs` with `engine`; its beginning and the end of each rollout are said on stderr."""
    from cluster.launch import run_rollouts

    output.say(f"run {run_id}: {_count(len(specs))}; follow with `openforge status` or `openforge logs {run_id}`")
    with follow(len(specs)) as on_event:
        return await run_rollouts(
            config,
            store_root,
            specs,
            model_dir=model_dir,
            engine=engine,
            run_id=run_id,
            project=settings.current().project,
            say=output.say,
            on_event=on_event,
        )


@contextmanager
def follow(total: int) -> "Iterator[Callable[[Rollout], None]]":
    """Progress of `total` rollouts: one step for each that has ended for good, one line for each new attempt."""
    from cluster.states import is_terminal
    from openforge_tui.cli.progress import progress

    ended: set[str] = set()
    with progress("rollouts", total) as shown:

        def on_event(rollout: "Rollout") -> None:
            if rollout.attempt and rollout.state == "queued":
                output.say(f"{rollout.id}: attempt {rollout.attempt} after an error")
            if rollout.state == "cancelled":
                return  # after Ctrl-C there are as many as were queued, and nothing to say of each
            if is_terminal(rollout.state) and rollout.last and rollout.id not in ended:
                ended.add(rollout.id)
                shown.step(describe(rollout))

        yield on_event


def check_end(store_root: "Path", run_id: "RunId", rollouts: "Sequence[Rollout]") -> None:
    """CancelError when somebody asked for the end of the whole run; single rollouts may be cancelled."""
    from openforge.errors import CancelError
    from openforge.store.lists import list_runs

    cancelled = sum(rollout.state == "cancelled" for rollout in rollouts)
    if cancelled and any(row["state"] == "cancelled" for row in list_runs(store_root, [run_id])):
        summary = f"run {run_id} was cancelled with {cancelled} of {len(rollouts)} rollouts to go"
        raise CancelError(f"{summary}; what was graded stays", hint=f"openforge rollouts {run_id}")


def describe(rollout: "Rollout") -> str:
    """One line: what a rollout came to."""
    reward = "" if rollout.reward is None else f" reward {rollout.reward:g}"
    why = f" ({rollout.result.error_class}: {rollout.result.detail})" if rollout.result.error_class else ""
    return f"{rollout.id} {rollout.state}{reward} {rollout.duration_s:.1f} s{why}"


def in_short(rollouts: "Sequence[Rollout]") -> str:
    """What a run came to: `36 rollouts, 2 error, reward 0.61`, the mean over graded rollouts."""
    states = [str(rollout.state) for rollout in rollouts]
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    parts = [_count(len(rollouts))]
    parts += [f"{states.count(state)} {state}" for state in ("error", "cancelled") if state in states]
    return ", ".join([*parts, f"reward {sum(rewards) / len(rewards):.2f}" if rewards else "none graded"])


def _count(rollouts: int) -> str:
    return "1 rollout" if rollouts == 1 else f"{rollouts} rollouts"


def by_harness(rollouts: "Sequence[Rollout]") -> list[dict[str, object]]:
    """One row a harness, in the order they were asked for. `reward` is the mean over graded rollouts."""
    rows = []
    for name in dict.fromkeys(rollout.spec.harness.name for rollout in rollouts):
        mine = [rollout for rollout in rollouts if rollout.spec.harness.name == name]
        sealed = [rollout.result.sealed for rollout in mine if rollout.result.sealed is not None]
        rewards = [rollout.reward for rollout in mine if rollout.reward is not None]
        states = [str(rollout.state) for rollout in mine]
        rows.append(
            {
                "harness": name,
                "rollouts": len(mine),
                "done": states.count("done"),
                "failed": states.count("failed"),
                "error": states.count("error"),
                "cancelled": states.count("cancelled"),
                "reward": round(sum(rewards) / len(rewards), 3) if rewards else None,
                "calls": sum(summary.calls for summary in sealed),
                "samples": sum(len(summary.samples) for summary in sealed),
                "seconds": round(sum(rollout.duration_s for rollout in mine) / len(mine), 1),
            }
        )
    return rows
