"""Mode: overview."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings


class OverviewScreen(View):
    SCOPE = "overview"
    MODE = "overview"
    BINDINGS: ClassVar = bindings("overview")

    def compose_body(self) -> Iterable[Widget]:
        yield Static("overview")

    async def load(self) -> None:
        self.header.crumbs = "overview"
