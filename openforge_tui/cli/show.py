"""`openforge show`: one rollout turn by turn, as the store reads it and openforge_tui/transcript.py draws it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from openforge.store.transcript import Transcript, Turn


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    rollout: Annotated[
        str | None, typer.Argument(help="A rollout id, or enough of it: `latest.count-lines` (default: the newest).")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Every token; sampled ones are marked.")] = False,
    turn: Annotated[int | None, typer.Option(help="Only this turn, from 1.")] = None,
    attempt: Annotated[int | None, typer.Option(help="An earlier attempt, from 0 (default: the latest).")] = None,
    full: Annotated[bool, typer.Option("--full", help="Cut no text.")] = False,
) -> None:
    """Read one rollout: messages, tool calls, tokens, breaks and their reasons, its grade, what it tried to reach.

    -o json gives all of it; jsonl, csv and parquet give one row a message, or a token with --tokens.
    """
    from openforge.store.asked import add_asked
    from openforge.store.transcript import find_rollout, newest_rollout, read_transcript

    store_root = settings.current().load().store_root
    rollout_id = newest_rollout(store_root) if rollout is None else find_rollout(store_root, rollout)[1]
    fmt = settings.current().output or "table"
    found = read_transcript(store_root, rollout_id, attempt=attempt, turn=turn, tokens=tokens)
    add_asked(store_root, found)
    if fmt == "table":
        _draw(found, tokens, full)
    elif fmt == "json":
        output.emit_object(_as_object(found), "json")
    else:
        output.emit(_as_rows(found, tokens))


def _draw(found: "Transcript", tokens: bool, full: bool) -> None:
    import sys

    from rich.console import Console

    from openforge_tui.transcript import Look, render

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False, markup=False)
    color = console.is_terminal and not console.no_color
    console.print(render(found, Look(color=color, full=full), tokens=tokens))


def _as_object(found: "Transcript") -> dict[str, Any]:
    turns = [
        {"turn": turn.number, **turn.call, "messages": _messages(turn), "tokens": turn.tokens} for turn in found.turns
    ]
    rest = {"samples": found.samples, "refused": found.refused, "grades": found.grades, "egress": found.egress}
    return {"rollout": found.rollout, "turns": turns, **rest}


def _as_rows(found: "Transcript", tokens: bool) -> list[dict[str, Any]]:
    return [
        {"turn": turn.number, "call_id": turn.call["call_id"], **row}
        for turn in found.turns
        for row in (turn.tokens if tokens else _messages(turn))
    ]


def _messages(turn: "Turn") -> list[dict[str, Any]]:
    return [{**row, "images": row.get("images", [])} for row in turn.message_rows()]
