"""`openforge logs`: what happened in a run, or what a program of it printed. Reads files; asks nobody."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from openforge_tui.cli import output, settings

_POLL_S = 0.25


def register(app: typer.Typer) -> None:
    app.command()(logs)


def logs(
    what: Annotated[str, typer.Argument(help="A rollout: what its harness printed. A run: what happened.")] = "latest",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    recorder: Annotated[bool, typer.Option("--recorder", help="What the run's recorder printed.")] = False,
    trainer: Annotated[bool, typer.Option("--trainer", help="What the run's trainer printed.")] = False,
    policy: Annotated[bool, typer.Option("--policy", help="What the newest policy server printed.")] = False,
) -> None:
    """Read what happened in a run, or what a harness, the recorder or the policy printed."""
    from openforge.store.connect import find_run
    from openforge.store.snapshot import take_snapshot
    from openforge.store.transcript import find_rollout

    store_root = settings.current().load().store_root
    if policy:
        return _print_file(_newest_policy_log(), follow, lambda: True)
    rollout_id = None
    if "." in what:
        run_id, rollout_id = find_rollout(store_root, what)
    else:
        run_id = find_run(store_root, what)
    run_dir = store_root / "runs" / run_id

    def going_on() -> bool:
        return bool(take_snapshot(store_root, [run_id]).live)

    if recorder:
        for shard in sorted((run_dir / "logs").glob("recorder-*.log")):
            output.say(f"another shard's: {shard}")
        _print_file(run_dir / "logs" / "recorder.log", follow, going_on)
    elif trainer:
        _print_file(run_dir / "logs" / "trainer.log", follow, going_on)
    elif rollout_id:
        _print_file(_newest(run_dir / "logs", f"{rollout_id}.*.log"), follow, going_on)
    else:
        _print_events(run_dir, follow, going_on)


def _newest(folder: Path, pattern: str) -> Path:
    from openforge.errors import UsageError

    found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(f"there is no log {pattern} in {folder}", hint="openforge runs")
    return found[-1]


def _newest_policy_log() -> Path:
    from openforge.cache import cache_dir

    return _newest(cache_dir() / "servers", "*.log")


def _print_file(path: Path, follow: bool, going_on: Any) -> None:
    empty = True
    for line in _lines(path, follow, going_on):
        _print({"line": line}, line)
        empty = False
    if empty:
        output.say(f"empty log: {path}")


def _lines(path: Path, follow: bool, going_on: Any) -> Iterator[str]:
    from openforge.errors import UsageError

    try:
        file = path.open(encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError:
        raise UsageError(f"there is no {path}", hint="openforge runs") from None
    with file:
        pending, last_look = "", False
        while True:
            for piece in file:
                pending += piece
                if pending.endswith("\n"):
                    yield pending.removesuffix("\n")
                    pending = ""
            if not follow or last_look:
                break
            last_look = not going_on()  # once more after the end: what was written in between
            time.sleep(0 if last_look else _POLL_S)
        if pending:
            yield pending


def _print_events(run_dir: Path, follow: bool, going_on: Any) -> None:
    from openforge.journal.reader import Tail
    from openforge_tui.events import KINDS, event_line

    tail, last_look = Tail(run_dir, KINDS), False
    while True:
        for record in sorted(tail.poll(), key=lambda record: record["ts"]):
            _print(record, event_line(record))
        if tail.more:
            continue
        if not follow or last_look:
            return
        last_look = not going_on()
        time.sleep(0 if last_look else _POLL_S)


def _print(row: dict[str, Any], line: str) -> None:
    """One line at a time, so that following works in every format that has lines."""
    from openforge_tui.transcript import visible

    fmt = settings.current().output or "table"
    if fmt in ("table", "name"):
        print(visible(line), flush=True)
    else:
        output.emit([row], fmt="jsonl")
