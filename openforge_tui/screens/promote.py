"""Mode: promote."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings


class PromoteScreen(View):
    SCOPE = "promote"
    MODE = "promote"
    BINDINGS: ClassVar = bindings("promote")

    def compose_body(self) -> Iterable[Widget]:
        yield Static("promote")

    async def load(self) -> None:
        self.header.crumbs = "promote"
