"""`openforge sql`: one question to the store in SQL. Does not know the views; the store tells them."""

from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS = 500
SAVED = {
    "harnesses": "SELECT harness, count(*) AS rollouts, avg(reward) AS reward, sum(calls) AS calls,"
    " sum(completion_tokens) AS sampled FROM rollouts GROUP BY ALL ORDER BY ALL",
    "errors": "SELECT error_class, count(*) AS attempts, any_value(detail) AS example FROM attempts"
    " WHERE error_class IS NOT NULL GROUP BY ALL ORDER BY attempts DESC",
    "breaks": "SELECT harness, break_reason, count(*) AS calls FROM calls JOIN rollouts USING (run_id, rollout_id)"
    " GROUP BY ALL ORDER BY ALL",
    "surprising": "SELECT rollout_id, position, text, logprob FROM tokens WHERE sampled ORDER BY logprob LIMIT 20",
    "tools": "SELECT call.name AS tool, count(*) AS calls, count(DISTINCT rollout_id) AS rollouts"
    " FROM (SELECT rollout_id, unnest(tool_calls) AS call FROM messages) GROUP BY ALL ORDER BY calls DESC",
    "egress": "SELECT host, port, decision, rule, count(*) AS times FROM egress GROUP BY ALL ORDER BY times DESC",
}


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
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 60,
    memory: Annotated[str, typer.Option(help="Most memory the query may use.")] = "2Gi",
) -> None:
    """Ask the store in SQL; without a query, list the views and saved questions."""
    from openforge.errors import UsageError

    if saved is not None and saved not in SAVED:
        raise UsageError(f"there is no saved question {saved!r}", hint=f"known: {', '.join(SAVED)}")
    question = SAVED[saved] if saved else query
    if columns is not None or question is None:
        return _list_columns(columns) if columns else _list()
    if saved:
        output.say(question)
    as_table = (settings.current().output or "table") == "table"
    limit = TABLE_ROWS if limit is None and as_table else limit
    table = _ask(question, run, timeout, memory, limit)
    if limit is not None and table.num_rows > limit:
        table = table.slice(0, limit)
        output.say(f"the first {limit} rows; --limit N shows more, -o csv all")
    output.emit_arrow(table)


def _ask(question: str, run: str | None, timeout_s: float, memory: str, limit: int | None) -> "pa.Table":
    from openforge.store.connect import find_run
    from openforge.store.sql import SafeSql

    store_root = settings.current().load().store_root
    runs = None if run is None else [find_run(store_root, run)]
    more = None if limit is None else limit + 1  # one more tells whether something was left out
    return SafeSql(store_root, runs=runs).query(question, timeout_s, memory, limit=more)


def _list() -> None:
    """The views, one line each. A program gets every column as well."""
    from openforge.store.schema import VIEWS

    if (settings.current().output or "table") != "table":
        return _list_columns(None)
    output.emit([{"view": view.name, "what": view.doc.partition("\n")[0]} for view in VIEWS])
    output.say("\ntheir columns: openforge sql --columns VIEW\nsaved questions (openforge sql --saved NAME):")
    for name, question in SAVED.items():
        output.say(f"  {name:<12} {question}")


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
