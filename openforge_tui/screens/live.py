"""Mode: live."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings


class LiveScreen(View):
    SCOPE = "live"
    MODE = "live"
    BINDINGS: ClassVar = bindings("live")

    def compose_body(self) -> Iterable[Widget]:
        yield Static("live")

    async def load(self) -> None:
        self.header.crumbs = "live"
