"""`openforge export`: a run as files. Does not know how they are made."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from openforge_tui.cli import output, settings


class Kind(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    DUCKDB = "duckdb"
    SFT = "sft"
    HTML = "html"


_DEFAULT_DEST = {
    Kind.PARQUET: "{run}",
    Kind.JSONL: "{run}.jsonl",
    Kind.DUCKDB: "{run}.duckdb",
    Kind.SFT: "{run}-sft.parquet",
    Kind.HTML: "{run}.html",
}


def register(app: typer.Typer) -> None:
    app.command()(export)


def export(
    run: Annotated[str, typer.Argument(help="A run id, a prefix, `latest` or `all`.")] = "latest",
    fmt: Annotated[Kind, typer.Option("--format", "-f", help="What to write.")] = Kind.PARQUET,
    to: Annotated[Path | None, typer.Option(help="Where to (default: named after the run, here).")] = None,
    view: Annotated[list[str] | None, typer.Option(help="Only this view; repeatable.")] = None,
    where: Annotated[str | None, typer.Option(help='sft: which samples, e.g. "reward = 1" (default: all).')] = None,
    html: Annotated[bool, typer.Option("--html", help="Short for --format html.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="html: rollouts at most, the worst first; 0 = all (default: 2000, 200 MB)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
) -> None:
    """Write a run to Parquet (a folder of views, or one file), JSON lines, a .duckdb file, rows for SFT, or a page.

    JSON lines hold one rollout with its messages each. SFT rows hold input_ids and loss_mask as they were recorded.
    The HTML page is one file to hand on: every rollout with its messages and tokens, in any browser, offline.
    """
    from openforge.errors import UsageError
    from openforge.store.connect import find_run
    from openforge.store.export import export as write

    if html and fmt not in (Kind.PARQUET, Kind.HTML):
        raise UsageError(f"--html and --format {fmt} are two things", hint="leave one of them out")
    fmt = Kind.HTML if html else fmt
    store_root = settings.current().load().store_root
    run_id = None if run == "all" else find_run(store_root, run)
    dest = to or Path(_DEFAULT_DEST[fmt].format(run=run_id or "all-runs"))
    if not force and (dest.is_file() or (dest.is_dir() and any(dest.iterdir()))):
        raise UsageError(f"{dest} is there already", hint="--force writes over it, --to names another place")
    done = write(store_root, run_id, fmt.value, dest, views=view, where=where, limit=limit)
    one_file = fmt is not Kind.PARQUET or dest.suffix == ".parquet"
    single = {
        Kind.SFT: "samples",
        Kind.JSONL: "rollouts",
        Kind.HTML: "rollouts",
        Kind.PARQUET: (view or ["samples"])[0],
    }
    rows = [
        {
            "file": str(dest if one_file else dest / name),
            "view": single[fmt] if one_file and fmt in single else Path(name).stem,
            "rows": count,
        }
        for name, count in done.rows.items()
    ]
    output.emit(rows, ["file", "view", "rows"])
    if not any(done.rows.values()):
        output.say(f"warning: what was written has 0 rows; next: openforge rollouts {run_id or 'latest'}")
    for reason, count in done.left_out.items():
        output.say(f"left out: {count} {reason}")
