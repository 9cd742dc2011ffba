"""`openforge policy list|make|path|serve`: the models that answer. Knows nothing about how one is made or served."""

from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.orchestrator import Rollout
    from trainer.sft import Step

Name = Annotated[str, typer.Argument(help="starter, smollm2, or a folder in Hugging Face's layout.")]
_SHOWN_STEPS = 20


def register(app: typer.Typer) -> None:
    policy = typer.Typer(no_args_is_help=True)
    app.add_typer(policy, name="policy", help="List, make and serve policies.")
    policy.command("list")(list_policies)
    for command in (make, path, serve):
        policy.command()(command)


def list_policies() -> None:
    """Print the policies that come with the project, those that were trained here, and where they are."""
    from openforge_tui import policies

    rows = [
        {"policy": name, "made": policies.find(name) is not None, "what": what, "folder": str(policies.place(name))}
        for name, what in policies.BUILTIN.items()
    ]
    rows += [
        {"policy": name, "made": True, "what": "trained here", "folder": str(folder)}
        for name, folder in policies.made().items()
    ]
    output.emit(rows)


def make(name: Name) -> None:
    """Make a policy when it is not there yet, and print its folder; minutes for the starter."""
    make_missing(name)
    path(name)


def make_missing(name: str) -> None:
    """Make a policy that comes with the project, unless it is there. UsageError when there is no recipe for it."""
    from openforge.errors import UsageError
    from openforge_tui import policies, train_set

    if policies.find(name) is not None:
        return
    if name not in policies.BUILTIN:
        raise UsageError(f"there is no recipe for {name!r}", hint="openforge policy list")
    if train_set.missing():
        raise UsageError(f"making {name!r} needs the train set", hint="./just train-set")
    if name == "starter":
        _make_starter()
    else:
        from trainer.smollm2 import smollm2

        smollm2(output.say)


def path(name: Name) -> None:
    """Print the folder of a policy."""
    from openforge_tui import policies

    output.emit_object({"policy": name, "folder": str(policies.resolve_policy(name))})


def serve(name: Annotated[str | None, typer.Argument(help="A policy (default: policy.model).")] = None) -> None:
    """Serve a policy with vLLM on this machine until Ctrl-C; runs with the same policy use this server."""
    from openforge_tui import policies

    chosen = name or settings.current().load().config.policy.model
    output.run_async(_serve(policies.resolve_policy(chosen)))


async def _serve(folder: "Path") -> None:
    from cluster.launch import serving_of
    from cluster.policy_server import use_policy_server
    from openforge.errors import InfraError

    policy = settings.current().load().config.policy
    server = await use_policy_server(serving_of(policy, folder, output.say), output.say)
    try:
        output.emit_object({"url": f"{server.url}/v1", "model": policy.served_name, "weights": server.weight_version})
        await server.died.wait()
        raise InfraError("the policy server has died", hint="openforge logs --policy")
    finally:
        await server.leave()


def _make_starter() -> None:
    from cluster.states import State
    from openforge_tui.cli.progress import progress
    from openforge_tui.starter import lessons, make_starter
    from trainer.starter.recipe import Recipe

    recipe = Recipe()
    steps = recipe.sft.steps
    with progress("demonstrations", len(lessons(recipe))) as shown:

        def on_rollout(rollout: "Rollout") -> None:
            if rollout.state in (State.DONE, State.FAILED):
                shown.step(f"{rollout.spec.task.name} by {rollout.spec.harness.name}: reward {rollout.reward:g}")

        def on_step(step: "Step") -> None:
            if step.number == 1:
                shown.phase("teaching", steps)
            if step.number % _SHOWN_STEPS == 0:
                shown.step(f"loss {step.loss:.4f}", _SHOWN_STEPS)

        make_starter(recipe, output.say, on_rollout, on_step)
