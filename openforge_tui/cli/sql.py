"""`openforge sql`: one question to the store in SQL. Does not know the views; the store tells them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openforge.store.saved import SAVED
from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    import pyarrow as pa

    from openforge.store.sql import SafeSql

TABLE_ROWS = 500


def register(app: typer.Typer) -> None:
    app.command()(sql)


def sql(
    query: Annotated[str | None, typer.Argument(help="One SELECT, DESCRIBE, SUMMARIZE or PIVOT statement.")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run: an id, a prefix or `latest`.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="VIEW", help="The columns of a view and what they mean.")
    ] = None,
    saved: Annotated[str | None, typer.Option(help=f"A question made ready: {', '.join(SAVED)}.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"Most rows (default: {TABLE_ROWS} in a table, all otherwise).")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all rows there instead: .parquet, .csv or .jsonl.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 60,
    memory: Annotated[str, typer.Option(help="Most memory the query may use.")] = "2Gi",
) -> None:
    """Ask the store in SQL; without a query, list the views and saved questions."""
    from openforge.errors import UsageError

    if saved is not None and saved not in SAVED:
        raise UsageError(f"there is no saved question {saved!r}", hint=f"known: {', '.join(SAVED)}")
    question = SAVED[saved].sql if saved else query
    if columns is not None or question is None:
        return _list_columns(columns) if columns else _list()
    if saved:
        output.say(f"{SAVED[saved].tells}\n{question}")
    if to is not None:
        if limit is not None:
            raise UsageError("--to writes all rows", hint="say LIMIT in the query")
        return _write(question, run, timeout, memory, to, force)
    as_table = (settings.current().output or "table") == "table"
    limit = TABLE_ROWS if limit is None and as_table else limit
    table = _ask(question, run, timeout, memory, limit)
    if limit is not None and table.num_rows > limit:
        table = table.slice(0, limit)
        output.say(f"the first {limit} rows; --limit N shows more, -o csv all")
    output.emit_arrow(table)


def _ask(question: str, run: str | None, timeout_s: float, memory: str, limit: int | None) -> "pa.Table":
    more = None if limit is None else limit + 1  # one more tells whether something was left out
    return _asked(run).query(question, timeout_s, memory, limit=more)


def _write(question: str, run: str | None, timeout_s: float, memory: str, to: Path, force: bool) -> None:
    from openforge.errors import UsageError
    from openforge.store.rows import check_dest, write_query

    check_dest(to)
    if to.exists() and not force:
        raise UsageError(f"{to} is there already", hint="--force writes over it, --to names another place")
    rows = write_query(_asked(run), question, to, timeout_s=timeout_s, memory=memory)
    output.emit([{"file": str(to), "rows": rows}], ["file", "rows"])


def _asked(run: str | None) -> "SafeSql":
    from openforge.store.connect import find_run
    from openforge.store.sql import SafeSql

    store_root = settings.current().load().store_root
    return SafeSql(store_root, runs=None if run is None else [find_run(store_root, run)])


def _list() -> None:
    """The views, one line each. A program gets every column as well."""
    from openforge.store.schema import VIEWS

    if (settings.current().output or "table") != "table":
        return _list_columns(None)
    output.emit([{"view": view.name, "what": view.doc.partition("\n")[0]} for view in VIEWS])
    output.say("\ntheir columns: openforge sql --columns VIEW\nsaved questions (openforge sql --saved NAME):")
    for name, question in SAVED.items():
        output.say(f"  {name:<12} {question.tells}")


def _list_columns(name: str | None) -> None:
    import difflib

    from openforge.errors import UsageError
    from openforge.store.schema import BY_NAME, VIEWS

    if name is not None and name not in BY_NAME:
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        raise UsageError(f"there is no view {name!r}", hint=f"did you mean {near[0]}?" if near else "openforge sql")
    rows = [
        {"view": view.name, "column": column.name, "type": column.type, "meaning": column.doc}
        for view in VIEWS
        if name in (None, view.name)
        for column in view.columns
    ]
    output.emit(rows, ["view", "column", "type", "meaning"] if name is None else ["column", "type", "meaning"])
