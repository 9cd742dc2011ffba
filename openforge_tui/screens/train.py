"""Mode: train."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Static

from openforge_tui.screens.view import View
from openforge_tui.widgets.binding import bindings


class TrainScreen(View):
    SCOPE = "train"
    MODE = "train"
    BINDINGS: ClassVar = bindings("train")

    def compose_body(self) -> Iterable[Widget]:
        yield Static("train")

    async def load(self) -> None:
        self.header.crumbs = "train"
