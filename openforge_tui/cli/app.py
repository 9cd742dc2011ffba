"""The `openforge` command: a table of verbs, each loaded only when it is typed.

A verb file has `register(app: typer.Typer) -> None` and may register several verbs. Global options (`-o`, `--project`,
`--store`, `--target`, `--set`) are accepted before and after any verb. Does not know what a verb does.
"""

import copy
import importlib
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from openforge import __version__
from openforge.errors import UsageError
from openforge_tui.cli import output as output_
from openforge_tui.cli import settings


class Verb(NamedTuple):
    """Where a verb lives and what `openforge --help` says about it without loading it."""

    module: str
    panel: str
    summary: str


_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")  # within a paragraph: the terminal's width decides, not the source's
_START, _CLUSTER, _RUN, _LOOK, _PARTS = "Start here", "Pods", "Work", "Look", "Parts"
VERBS: dict[str, Verb] = {
    "app": Verb("desk", _START, "Open the app (so does `openforge` alone): bring it up, watch it, ask it, train it."),
    "web": Verb("web", _START, "The app in a browser on this machine."),
    "doctor": Verb("doctor", _START, "Check this machine and say what to type next."),
    "init": Verb("init", _START, "Write an openforge.toml here."),
    "demo": Verb("demo", _START, "Real harnesses, a small policy, every token: from nothing to a table."),
    "learn": Verb("learn", _START, "A small policy learns inside a real harness: the curve, before and after."),
    "up": Verb("cluster", _CLUSTER, "Bring a cluster up on this machine, for rollouts in pods."),
    "down": Verb("cluster", _CLUSTER, "Remove it with all that runs in it."),
    "images": Verb("images", _CLUSTER, "List, build and remove the images of sandboxes."),
    "run": Verb("run", _RUN, "Run tasks with harnesses against the policy."),
    "cancel": Verb("steer", _RUN, "End runs or rollouts that go on."),
    "pause": Verb("steer", _RUN, "Hold a run or a training: what is under way ends, no other rollout begins."),
    "unpause": Verb("steer", _RUN, "Go on with runs that were paused."),
    "eval": Verb("eval", _RUN, "Evaluate checkpoints: success, pass@k and pass^k with intervals."),
    "train": Verb("train", _RUN, "Train the policy inside the real harnesses, with veRL."),
    "sft": Verb("sft", _RUN, "Teach a model the successes of runs."),
    "status": Verb("status", _RUN, "What is running now."),
    "wait": Verb("wait", _RUN, "Wait until a run or a rollout has come to a state."),
    "verify": Verb("verify", _RUN, "Prove that what was recorded is what was sampled."),
    "runs": Verb("runs", _LOOK, "List runs."),
    "rollouts": Verb("rollouts", _LOOK, "List the rollouts of a run."),
    "show": Verb("show", _LOOK, "Read one rollout turn by turn, token by token."),
    "sql": Verb("sql", _LOOK, "Ask the store in SQL."),
    "export": Verb("export", _LOOK, "Write a run to Parquet, JSONL, a .duckdb file or one HTML page."),
    "logs": Verb("logs", _LOOK, "What the recorder, the policy and the harnesses printed."),
    "harness": Verb("harness", _PARTS, "List and install harnesses."),
    "tasks": Verb("tasks", _PARTS, "List tasks and prove them valid."),
    "policy": Verb("policy", _PARTS, "List, make and serve policies."),
    "support-bundle": Verb("support", _PARTS, "Write what a bug report needs to one file, secrets hidden."),
    "config": Verb("config", _PARTS, "Show, check and describe the configuration."),
}


class LazyGroup(TyperGroup):
    """Help and completion read VERBS; only the verb that was typed is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        return verb and TyperCommand(cmd_name, help=verb.summary, rich_help_panel=verb.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands.update({name: self.get_command(ctx, name) for name in VERBS})  # for "did you mean"
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_verb(name, self.params) if name else command, rest

    def invoke(self, ctx: Any) -> Any:
        code = super().invoke(ctx)
        if isinstance(code, int):
            raise typer.Exit(code)  # on its own typer drops what a verb returns
        return code


def load_verb(name: str, global_options: list[Any]) -> Any:
    """Import the file of a verb and return its command, taking the global options at every leaf."""
    path = f"openforge_tui.cli.{VERBS[name].module}"
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise UsageError(f"`openforge {name}` is not part of this version", hint="openforge --help") from error
    holder = typer.Typer()
    module.register(holder)
    command = typer.main.get_group(holder).commands[name]
    _add_globals(command, global_options)
    return command


def _add_globals(command: Any, global_options: list[Any]) -> None:
    if isinstance(command, TyperGroup):
        for child in command.commands.values():
            _add_globals(child, global_options)
        return
    command.help = _LINE_BREAK.sub(" ", command.help or "")
    taken = {flag for param in command.params for flag in param.opts}
    for option in global_options:
        if option.name in _GLOBALS and not taken.intersection(option.opts):
            option = copy.copy(option)
            option.expose_value, option.callback = False, _take_late
            option.rich_help_panel = "Everywhere"
            command.params.append(option)


def _take_late(_ctx: Any, param: Any, value: Any) -> Any:
    _take(**{param.name: value})
    return value


def _take(
    output: str | None = None,
    project: Any = None,
    store: Any = None,
    target: str | None = None,
    overrides: Any = None,
) -> None:
    settings.change(
        output=settings.check_output(output),
        project=Path(project).absolute() if project is not None else None,
        store=Path(store) if store is not None else None,
        target=target,
        overrides={**settings.current().overrides, **settings.parse_overrides(list(overrides))} if overrides else None,
    )


_GLOBALS = frozenset({"output", "project", "store", "target", "overrides"})
app = typer.Typer(cls=LazyGroup, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FORMAT", help=f"{', '.join(settings.FORMATS)}.")
    ] = None,
    project: Annotated[Path | None, typer.Option(help="Folder of openforge.toml (default: here).")] = None,
    store: Annotated[Path | None, typer.Option(help="Where runs are kept (default: .openforge).")] = None,
    target: Annotated[str | None, typer.Option(help="Name of a target table in openforge.toml.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config value; repeatable.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    spec: Annotated[bool, typer.Option("--spec", help="Print every command and option as JSON.")] = False,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="An app that only looks (with no verb, app or web).")
    ] = False,
) -> int | None:
    """Put real agent harnesses inside the RL training loop, and keep every token."""
    _take(output, project, store, target, overrides)
    if readonly and ctx.invoked_subcommand not in (None, "app", "web"):
        raise UsageError("--readonly is for the app", hint="openforge --readonly, or openforge web --readonly")
    settings.change(readonly=readonly)
    if version:
        typer.echo(__version__)
    elif spec:
        from openforge_tui.cli.spec import describe

        output_.emit_object(describe(VERBS, lambda name: load_verb(name, [])), "json")
    elif ctx.invoked_subcommand is None:
        if sys.stdin.isatty() and sys.stdout.isatty():
            from openforge_tui.cli.desk import desk

            return desk()
        typer.echo(ctx.get_help())
    return None


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (0, 1, 2, 3, 4, 5 or 130)."""
    settings.reset()
    return output_.run_command(lambda: app(sys.argv[1:] if argv is None else argv, prog_name="openforge"))
