"""Mode: sql."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings


class SqlScreen(View):
    SCOPE = "sql"
    MODE = "sql"
    BINDINGS: ClassVar = bindings("sql")

    def compose_body(self) -> Iterable[Widget]:
        yield Static("sql")

    async def load(self) -> None:
        self.header.crumbs = "sql"
