"""`openforge harness`: list, install, and check what a harness really does on the wire."""

from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.conformance import Fingerprint
    from openforge.config import Config
    from openforge.harness import HarnessManifest
    from openforge.ids import RunId

harness_app = typer.Typer(no_args_is_help=True, help="List and install harnesses.")


def register(app: typer.Typer) -> None:
    app.add_typer(harness_app, name="harness")


@harness_app.command("list")
def list_harnesses() -> None:
    """List the harnesses that have a manifest, and which are on this machine."""
    from cluster.install import harness_dir
    from openforge_tui.harnesses import known_harnesses

    rows = []
    for known in known_harnesses(settings.current().project):
        manifest = known.manifest
        if manifest is None:  # it must not hide the others
            output.say(f"left out: {known.trouble}")
            continue
        rows.append(
            {
                "harness": manifest.name,
                "version": manifest.version,
                "dialects": ", ".join(manifest.spec.dialects),
                "install": manifest.spec.install.kind,
                "installed": known.installed,
                "hash": manifest.content_hash()[:12],
                "folder": str(harness_dir(manifest)),
                "summary": manifest.spec.summary,
            }
        )
    output.emit(rows, ["harness", "version", "installed", "dialects", "summary", "install", "hash"])


def _load(names: list[str]) -> "list[HarnessManifest]":
    from openforge.harness import harness_roots, load_harness

    return [load_harness(name, harness_roots(settings.current().project)) for name in names]


@harness_app.command()
def install(
    names: Annotated[list[str], typer.Argument(help="Harnesses by name or folder, for example pi codex.")],
) -> None:
    """Install harnesses at the version their manifests pin."""
    from cluster import install as installer

    rows = []
    for manifest in _load(names):
        installed = installer.install(manifest, output.say)
        rows.append({"harness": manifest.name, "version": manifest.version, "folder": str(installed.root)})
    output.emit(rows, ["harness", "version", "folder"])


@harness_app.command()
def check(
    names: Annotated[list[str], typer.Argument(help="Harnesses, for example react pi.")],
    task: Annotated[str, typer.Option(help="The task it solves against a scripted policy.")] = "desk/count-lines",
    diff: Annotated[bool, typer.Option("--diff", help="Show what changed since the last check.")] = False,
) -> None:
    """Run harnesses against a scripted policy and say what they do: dialect, tools, history, side calls, egress.

    Exit code 5 when one does something its manifest does not say; with --diff also when it changed since last time.
    """
    from cluster.conformance import drift, last_fingerprint, surprises
    from openforge.errors import CheckError
    from openforge.ids import new_run_id

    loaded = settings.current().load_real()
    store_root = loaded.store_root / "checks"  # no run of the project: `latest` stays what it was
    faults: list[str] = []
    rows: list[dict[str, object]] = []
    for manifest in _load(names):
        run_id = new_run_id()
        before = last_fingerprint(store_root, manifest.name, run_id)
        seen = output.run_async(_observe(loaded.config, store_root, manifest, task, run_id))
        faults += [f"{manifest.name} {fault}" for fault in surprises(manifest, seen)]
        if not diff:
            rows += [{"harness": manifest.name, "what": key, "seen": value} for key, value in seen.items()]
        elif before is None:
            output.say(f"{manifest.name}: nothing to compare with; this check is the first")
        else:
            version, old = before
            changes = drift(old, seen)
            faults += [f"{manifest.name}: {name} changed since version {version}" for name, _, _ in changes]
            rows += [{"harness": manifest.name, "what": name, "before": a, "now": b} for name, a, b in changes]
    output.emit(rows, ["harness", "what", "before", "now"] if diff else ["harness", "what", "seen"])
    if faults:
        raise CheckError("; ".join(faults), hint=f"openforge --store {store_root} show")


async def _observe(
    config: "Config", store_root: "Path", manifest: "HarnessManifest", task: str, run_id: "RunId"
) -> "Fingerprint":
    import asyncio

    from cluster.attempt import RolloutSpec
    from cluster.conformance import fingerprint
    from cluster.launch import Engine, orchestrate
    from openforge.errors import UsageError
    from openforge.task import load_tasks
    from openforge_tui.teacher import teacher

    tasks = load_tasks([task])
    if len(tasks) != 1:
        raise UsageError(f"--task {task} names {len(tasks)} tasks; a check needs one")
    run = config.run.model_copy(
        update={"mode": "record", "tasks": (task,), "harnesses": (manifest.name,), "samples": 1, "retries": 0}
    )
    policy = config.policy.model_copy(
        update={"model": "teacher", "engine": "openai", "api_key_env": "", "tokenizer": ""}
    )
    config = config.model_copy(update={"run": run, "policy": policy})
    async with teacher([task]) as url:
        engine = Engine(url, "teacher", asyncio.Event())
        async with orchestrate(config, store_root, engine, run_id=run_id, say=output.say) as orchestrator:
            [rollout] = await orchestrator.run_all([RolloutSpec(tasks[0], manifest, 0, config.run.seed)])
            seen = fingerprint(orchestrator.run_dir, rollout)
            orchestrator.journal.append(
                "harness.fingerprint", harness=manifest.name, version=manifest.version, fingerprint=seen
            )
    return seen
