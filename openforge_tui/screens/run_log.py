"""What happens in a run, as it happens. Going up stops following; the filter is asked of every line, old and new."""

from collections import deque
from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import Log

from openforge.journal.reader import Tail
from openforge_tui.events import KINDS, event_line
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible

_MOST_LINES = 20_000
_CUT = 2000  # characters of a line


class RunLogScreen(View):
    SCOPE = "run_log"
    MODE = "runs"
    DEFAULT_CSS = "RunLogScreen Log { height: 1fr; }"

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._tail: Tail | None = None
        self._filter = ""
        self._seen = self._new = 0

    def compose_body(self) -> Iterable[Widget]:
        yield Log(max_lines=_MOST_LINES, auto_scroll=False)

    async def load(self) -> None:
        if self._tail is None:
            self._tail = Tail(self.desk.reader.store_root / "runs" / self.run_id, KINDS)
        lines = await self.desk.reader.work(_new_lines, self._tail)
        self._lines.extend(lines)
        self._seen += len(lines)
        log = self.query_one(Log)
        following = log.is_vertical_scroll_end
        if self._filter != self.filter_text:
            self._filter = self.filter_text
            log.clear()
            lines, following = list(self._lines), True
        shown = [line for line in lines if self.matches({"line": line})]
        self._new = 0 if following else self._new + len(shown)
        if shown:
            log.write_lines(shown, scroll_end=following)
        self.header.crumbs = f"runs › {self.run_id} › log"
        dropped = self._seen - len(self._lines)
        facts = [
            f"⏸ {self._new} new, G follows" if not following and self._new else "",
            f"{log.line_count} of {self._seen} lines",
            f"the first {dropped} are left out: openforge logs {self.run_id}" if dropped else "",
        ]
        self.header.note = " · ".join(filter(None, facts))

    def copyable(self) -> str:
        return "\n".join(self.query_one(Log).lines)


def _new_lines(tail: Tail) -> list[str]:
    records = tail.poll()
    while tail.more:
        records += tail.poll()
    return [_shortened(event_line(record)) for record in sorted(records, key=lambda one: one["ts"])]


def _shortened(line: str) -> str:
    """So that neither drawing nor a filter's regular expression takes long; `openforge logs` prints the whole."""
    left = len(line) - _CUT
    return visible(line[:_CUT] + (f" … {left} more characters" if left > 0 else "")).replace("\n", "⏎")
