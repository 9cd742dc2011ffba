"""How every verb talks: stdout is data, stderr is narration, the exit code is an answer.

Text that came from a model or a program is never markup and never reaches a terminal with its escape sequences.
Does not know any verb.
"""

import asyncio
import csv
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openforge.errors import InfraError, OpenForgeError, UsageError
from openforge_tui.cli import settings

if TYPE_CHECKING:
    import pyarrow as pa

# Terminal sequences first, so that their printable tails go with them, then what is left of the control characters.
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[P^_X][^\x1b]*(?:\x1b\\)?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def plain(text: str) -> str:
    """`text` without anything a terminal would obey; newlines and tabs stay."""
    return _CONTROL.sub("", text)


def say(text: str) -> None:
    """Narration: one line on stderr. That nobody reads it any more (the terminal was closed) must not end the work."""
    with suppress(OSError):
        print(plain(text), file=sys.stderr, flush=True)


def command() -> str:
    """What a person types to get this program: its name where an activated environment has it, else its path."""
    if os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return "openforge"
    beside = Path(sys.executable).with_name("openforge")
    if not beside.exists():
        return "openforge"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def emit(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    fmt: str | None = None,
    *,
    title: str = "",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Print rows on stdout in `fmt` (default: what `-o` said, else a table).

    `columns` gives names and order; without it the first row does. `name` prints the first column alone. `title`
    stands over a table and nowhere else; `headers` are shorter names of columns, for a table alone.
    """
    rows = list(rows)
    columns = list(columns if columns is not None else (rows[0] if rows else ()))
    fmt = settings.check_output(fmt or settings.current().output) or "table"
    if fmt == "parquet":
        import pyarrow as pa

        emit_arrow(pa.Table.from_pylist([{c: row.get(c) for c in columns} for row in rows]), fmt)
    elif fmt == "table":
        _write(_table(rows, columns, title, headers or {}))
    elif fmt == "name":
        _write("".join(f"{plain(_text(row.get(columns[0])))}\n" for row in rows))
    elif fmt == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_text(row.get(c)) for c in columns] for row in rows)
        _write(buffer.getvalue())
    else:
        values = [{c: row.get(c) for c in columns} for row in rows]
        _write(_json(values, indent=True) + b"\n" if fmt == "json" else b"".join(_json(v) + b"\n" for v in values))


def emit_arrow(table: "pa.Table", fmt: str | None = None) -> None:
    """Print an Arrow table; Parquet bytes keep its types."""
    fmt = settings.check_output(fmt or settings.current().output) or "table"
    if fmt != "parquet":
        return emit(table.to_pylist(), table.column_names, fmt)
    if sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", hint="openforge … -o parquet > rows.parquet")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    _write(buffer.getvalue())


def emit_object(value: Mapping[str, Any], fmt: str | None = None) -> None:
    """Print one thing: a two-column table, or one JSON object."""
    fmt = settings.check_output(fmt or settings.current().output) or "table"
    if fmt == "json":
        _write(_json(dict(value), indent=True) + b"\n")
    elif fmt == "table":
        _write(_table([{"": key, " ": item} for key, item in value.items()], ["", " "], "", {}))
    else:
        emit([value], list(value), fmt)


def run_command(command: Callable[[], object]) -> int:
    """Run `command` and turn how it ended into an exit code; what went wrong is told on stderr."""
    for number in _stops():
        signal.signal(number, signal.default_int_handler)  # so that `finally` runs for all of them
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except OpenForgeError as error:
        say(f"error: {error.summary}" + (f"\n  next: {error.hint}" if error.hint else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return _reader_left()
    except OSError as error:
        if error.errno not in _MACHINE:
            raise  # a fault of ours: all of it is told
        say(f"error: {error.filename or 'a file'}: {error.strerror}\n  next: openforge doctor")
        return InfraError.exit_code
    except SystemExit as end:
        if end.code == 130:  # typer's way to hand on a KeyboardInterrupt
            return _interrupted()
        return end.code if isinstance(end.code, int) else int(end.code is not None)


_MACHINE = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def _stops() -> list[signal.Signals]:
    """The signals that end the work in good order. One that says "the terminal is gone" may be switched off (nohup)."""
    hung_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hung_up]


def _interrupted() -> int:
    say("interrupted")
    return 130


def run_async[T](work: Coroutine[Any, Any, T], finish: Callable[[], bool] = lambda: False) -> T:
    """Run `work`. Ctrl-C, SIGTERM and a closed terminal cancel it and let it clean up; it ends as KeyboardInterrupt.

    A second signal only says so, since processes would be left behind; the third leaves them behind. `finish` comes
    first: while it says True, the work is ending by itself and is not cancelled.
    """
    presses = 0
    before = {number: signal.getsignal(number) for number in _stops()}

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal presses
            if not presses and finish():
                return
            presses += 1
            if presses > 2:
                raise KeyboardInterrupt
            say("ending what was started …" if presses == 1 else "still ending it; once more leaves it behind")
            if presses == 1:
                task.cancel()

        for number in before:
            asyncio.get_running_loop().add_signal_handler(number, stop)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(data: str | bytes) -> None:
    try:
        sys.stdout.flush()
        if isinstance(data, str):
            sys.stdout.write(data)
        else:
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        raise SystemExit(_reader_left()) from None


def _reader_left() -> int:
    # `openforge runs | head` is no failure; the interpreter must not try to flush a pipe nobody reads.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _json(value: Any, *, indent: bool = False) -> bytes:
    import orjson

    return orjson.dumps(value, default=_plain_value, option=orjson.OPT_INDENT_2 if indent else 0)


def _plain_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list | tuple | bytes):
        return _json(value).decode()
    return str(value)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str, headers: Mapping[str, str]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from openforge_tui.cli.table import GAP, Column, fit

    cells = [
        Column(
            headers.get(name, name),
            tuple(plain(_text(row.get(name))).replace("\n", "⏎") for row in rows),
            fixed=bool(rows) and all(isinstance(row.get(name), int | float | date | None) for row in rows),
            right=bool(rows) and all(isinstance(row.get(name), int | float | None) for row in rows),
        )
        for name in columns
    ]
    on_terminal = sys.stdout.isatty()
    layout = fit(cells, Console().width if on_terminal else sys.maxsize)
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", header_style="bold")
    for column, width in layout.shown:
        justify: Any = "right" if column.right else "left"
        table.add_column(column.header, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for number in range(len(rows)):
        table.add_row(*(Text(column.cells[number]) for column, _ in layout.shown))
    buffer = io.StringIO()
    wide = sum(width + GAP for _, width in layout.shown)
    console = Console(file=buffer, force_terminal=on_terminal, width=max(wide, 1))
    console.print(table)
    if layout.left_out:
        count = len(layout.left_out)
        say(f"… {count} more {'column' if count == 1 else 'columns'} ({', '.join(layout.left_out)}): -o json")
    elif layout.cut:
        say("some cells are cut to fit this terminal; -o json shows them whole")
    if on_terminal:
        return buffer.getvalue()
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())
