"""The images of one turn, one at a time, as well as this terminal can show them. Each can be written to a file."""

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from openforge.errors import OpenForgeError
from openforge.images import Image, size_text
from openforge.store.whole import whole_file, writing
from openforge.wire import Found
from openforge_tui import graphics
from openforge_tui.screens.dialog import WriteTo
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings


class ImageScreen(View):
    SCOPE = "image"
    MODE = "runs"
    FILTERS = False
    BINDINGS: ClassVar = bindings("image")
    DEFAULT_CSS = """
    ImageScreen #told { height: 1; padding: 0 1; background: $surface; }
    ImageScreen #picture { height: 1fr; align: center middle; }
    ImageScreen #picture Static { width: auto; max-width: 100%; padding: 0 2; }
    """

    def __init__(self, rollout_id: str, turn: int, images: Sequence[Found]) -> None:
        super().__init__()
        self._rollout_id, self._turn, self._images = rollout_id, turn, images
        self._at = 0

    def compose_body(self) -> Iterable[Widget]:
        yield Static(id="told", markup=False)
        yield Container(id="picture")

    @property
    def _image(self) -> Image:
        return self._images[self._at].image

    async def load(self) -> None:
        place = self.query_one("#picture", Container)
        if not place.size or self.unchanged(self._at, place.size):
            return
        run_id, _, name = self._rollout_id.partition(".")
        self.header.crumbs = f"runs › {run_id} › {name} › turn {self._turn}"
        self.header.note = f"image {self._at + 1} of {len(self._images)}"
        shown, how = await self._drawn(place)
        await place.remove_children()
        await place.mount(shown)
        told = self._image.told(self._at + 1)[1:-1] if not self._image.fault else f"image {self._at + 1}"
        told = " · ".join(filter(None, (told, f"{self._images[self._at].role} message", how)))
        self.query_one("#told", Static).update(visible(told))

    async def _drawn(self, place: Container) -> tuple[Widget, str]:
        """The picture and how it is drawn, or what stands in its place."""
        image, desk = self._image, self.desk
        if image.fault:
            return self._instead(f"This image cannot be shown: {image.fault}"), ""
        if not desk.has_color:
            return self._instead("This terminal shows neither graphics nor colours."), ""
        way: graphics.Way = "cells"
        if not (desk.is_web or desk.is_headless):  # whose output goes to a browser, or to a test
            truecolor = desk.console.color_system == "truecolor"
            way = graphics.way_of(desk.loaded.config.app.images, os.environ, truecolor=truecolor)
        cell = graphics.cell_size()
        try:
            fitted = await desk.reader.work(graphics.fit, image.data, way, (place.size.width, place.size.height), cell)
            kind = await desk.reader.work(graphics.widget_class, way, cell)
        except ValueError as error:
            return self._instead(f"This image cannot be shown: {error}"), ""
        except ImportError as error:
            return self._instead(f"Images need the packages Pillow and textual-image: {error}"), ""
        shown = kind(fitted.picture)
        shown.styles.width, shown.styles.height = fitted.columns, fitted.rows
        return shown, graphics.NAMES[way] + (", the first frame" if fitted.animated else "")

    def _instead(self, why: str) -> Static:
        size = size_text(len(self._image.data))
        next_ = f"\n\nw writes it to a file ({size})." if self._image.data else ""
        return Static(visible(why + next_), markup=False)

    async def on_resize(self) -> None:
        self.look_again()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("next", "last"):
            return len(self._images) > 1
        return super().check_action(action, parameters)

    def action_next(self) -> None:
        self._go(1)

    def action_last(self) -> None:
        self._go(-1)

    def _go(self, by: int) -> None:
        self._at = (self._at + by) % len(self._images)
        self.look_again()

    def copyable(self) -> str:
        return self._image.told(self._at + 1)

    def action_write(self) -> None:
        image = self._image
        if not image.data:
            return self.say(f"there is nothing to write: {image.fault}", error=True)
        name = f"{self._rollout_id}-turn{self._turn}-image{self._at + 1}{image.suffix}"
        self.app.push_screen(WriteTo("Write this image to:", Path.cwd(), name), partial(self._write, image.data))

    def _write(self, data: bytes, dest: Path | None) -> None:
        if dest is not None:
            self.run_worker(self._writing(data, dest), group="write")

    async def _writing(self, data: bytes, dest: Path) -> None:
        try:
            await self.desk.reader.work(write_image, data, dest)
        except OpenForgeError as error:
            self.desk.tell(error)
        else:
            self.say(f"written: {dest}")


def write_image(data: bytes, dest: Path) -> None:
    """The whole file or none. Raises OpenForgeError."""
    with whole_file(dest) as temporary, writing(dest):
        temporary.write_bytes(data)
