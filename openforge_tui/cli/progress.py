"""Progress of long work on stderr: a bar on a terminal, one line a step everywhere else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from openforge_tui.cli.output import plain, say


class Progress(Protocol):
    """What long work tells: steps are done, and what each was; a new phase has steps of its own."""

    def step(self, text: str, count: int = 1) -> None: ...

    def phase(self, title: str, total: int) -> None: ...


class _Lines:
    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0

    def step(self, text: str, count: int = 1) -> None:
        self.done += count
        say(f"{self.title} {self.done}/{self.total}: {text}")

    def phase(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0


@contextmanager
def progress(title: str, total: int) -> Iterator[Progress]:
    """Show `total` steps called `title` while the block runs."""
    if not sys.stderr.isatty():
        yield _Lines(title, total)
        return
    import rich.progress as bars
    from rich.console import Console
    from rich.text import Text

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as shown:

        class _Bar:
            task = shown.add_task(title, total=total)

            def step(self, text: str, count: int = 1) -> None:
                shown.console.print(Text(plain(text)))
                shown.advance(self.task, count)

            def phase(self, title: str, total: int) -> None:
                shown.stop_task(self.task)
                self.task = shown.add_task(title, total=total)

        yield _Bar()
