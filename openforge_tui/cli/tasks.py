"""`openforge tasks`: list task sets, show one task, prove tasks valid by running them."""

from typing import Annotated

import typer

from openforge_tui.cli import output, settings

tasks_app = typer.Typer(no_args_is_help=True, help="List tasks and prove them valid.")


def register(app: typer.Typer) -> None:
    app.add_typer(tasks_app, name="tasks")


@tasks_app.command("list")
def list_tasks(refs: Annotated[list[str] | None, typer.Argument(help="Task sets, tasks or folders.")] = None) -> None:
    """List tasks (all sets when none is named)."""
    from openforge.task import list_sets, load_tasks

    rows = [
        {
            "task": task.ref,
            "category": task.metadata.get("category"),
            "difficulty": task.metadata.get("difficulty"),
            "near_misses": len(task.near_misses()),
            "hash": task.content_hash()[:12],
            "instruction": task.instruction,
        }
        for task in load_tasks(refs or list_sets())
    ]
    output.emit(rows, ["task", "category", "difficulty", "near_misses", "instruction", "hash"])


@tasks_app.command()
def show(ref: Annotated[str, typer.Argument(help="A task, for example desk/count-lines.")]) -> None:
    """Show one task: what the agent is told, where it lies, its limits."""
    from openforge.task import load_tasks

    for task in load_tasks([ref]):
        output.emit_object(
            {
                "task": task.ref,
                "folder": str(task.root),
                "hash": task.content_hash(),
                "instruction": task.instruction,
                "setup": str(task.setup) if task.setup else None,
                "skills": ", ".join(task.skills) or None,
                "agent_timeout_s": task.agent_timeout_s,
                "verifier_timeout_s": task.verifier_timeout_s,
                "near_misses": len(task.near_misses()),
            }
        )


@tasks_app.command()
def validate(
    refs: Annotated[list[str] | None, typer.Argument(help="Task sets, tasks or folders (default: run.tasks).")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to try.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Tasks at once.")] = 2,
) -> None:
    """Prove tasks valid: the oracle scores 1, doing nothing 0, near misses 0, the start files are repeatable.

    Exit code 5 when a check fails.
    """
    import shutil
    import tempfile
    from pathlib import Path

    from cluster.launch import make_runtime
    from cluster.validate import validate_tasks
    from openforge.errors import CheckError
    from openforge.ids import new_run_id
    from openforge.task import load_tasks
    from openforge_tui.cli.progress import progress

    config = settings.current().load_real().config
    tasks = load_tasks(refs or config.run.tasks)
    logs = Path(tempfile.mkdtemp(prefix="openforge-validate-"))
    runtime, _ = make_runtime(config, new_run_id(), output.say, keep_start_files=0)
    with progress("tasks", len(tasks)) as shown:
        work = validate_tasks(
            runtime, tasks, config.sandbox, range(seeds), logs, jobs, lambda task: shown.step(task.ref)
        )
        checks = output.run_async(work)
    if all(check.ok for check in checks):
        shutil.rmtree(logs)
    rows = [{**vars(check), "ok": check.ok} for check in checks]
    output.emit(rows, ["task", "check", "seed", "expected", "got", "ok", "problem"])
    if failed := [check for check in checks if not check.ok]:
        raise CheckError(f"{len(failed)} of {len(checks)} checks failed", hint=f"what the scripts printed: {logs}")
    output.say(f"{len(tasks)} tasks are valid ({len(checks)} checks)")
