"""The app without a terminal: opened over a made-up store, keys pressed, the screen read as text.

Snapshots are plain text, so that a person can review them: `UPDATE_SNAPSHOTS=1 ./just test …` writes them anew.
"""

import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import ModalScreen

from openforge.config import load
from openforge_tui.app import Desk, Opening
from openforge_tui.screens.view import View
from openforge_tui.widgets.header import Header

sys.path.insert(0, str(Path(__file__).parents[2] / "openforge" / "store"))

from synthetic import SyntheticRun

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (140, 45))
_WAIT_S = 30.0
_BEGAN = 1_795_000_000.0  # 2026-11-18, so that what is shown of time is the same every day

type OpenDesk = Callable[..., AbstractAsyncContextManager["Opened"]]


class Opened:
    """The app while it is open."""

    def __init__(self, desk: Desk, pilot: Pilot[Any]) -> None:
        self.desk, self.pilot = desk, pilot

    @property
    def view(self) -> Any:
        """The screen in front."""
        return self.desk.screen

    def text(self) -> str:
        """The screen as a person sees it, a line a row."""
        rows = self.desk.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in row).rstrip() for row in rows) + "\n"

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settled()

    async def settled(self) -> None:
        """Until what was asked for is on the screen: a whole load since now, and no message left."""
        await self.pilot.pause()
        view = self.desk.screen
        if isinstance(view, View) and view.is_mounted:
            await self.until(lambda: view.loads > 0 or not view.is_current)
            for _ in range(2):  # the first may have begun before what was asked for
                before = view.loads
                view.look_again()
                await self.until(lambda before=before: view.loads > before or not view.is_current)
        await self.pilot.pause()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something to become true; fails after a while, with the screen."""
        for _ in range(int(_WAIT_S / 0.02)):
            if true():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"it did not come to that; the screen:\n{self.text()}")

    async def until_text(self, text: str) -> None:
        """Until it is on the screen, or broken into lines in the dialog in front."""
        await self.until(lambda: text in self.text() or text in self._words())

    def _words(self) -> str:
        """What stands in the dialog in front (else on the whole screen), as one line."""
        lines = self.text().splitlines()
        if isinstance(self.desk.screen, ModalScreen):
            box = self.desk.screen.children[0].region
            lines = [line[box.x : box.right] for line in lines[box.y : box.bottom]]
        return " ".join(" ".join(lines).replace("│", " ").split())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with an empty store."""
    (tmp_path / ".openforge" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One made-up run of three rollouts, at a fixed hour; ended unless a test goes on with it."""
    clock = itertools.count()
    monkeypatch.setattr("openforge.journal.writer.time.time", lambda: _BEGAN + next(clock) * 0.25)
    made = SyntheticRun(project / ".openforge")
    made.rollout(task="fix-mean", harness="react", sample=0, reward=1.0)
    made.rollout(task="fix-mean", harness="pi", sample=0, reward=0.0)
    made.rollout(task="rename-md", harness="react", sample=0, turns=5, reward=1.0)
    yield made
    made.close()


@pytest.fixture
def open_desk(project: Path) -> OpenDesk:
    """`async with open_desk(mode="runs", size=(80, 24)) as app:`"""

    @asynccontextmanager
    async def opened(
        mode: str = "runs", size: tuple[int, int] = (140, 45), readonly: bool = False, target: str | None = None
    ) -> AsyncIterator[Opened]:
        desk = Desk(Opening(load(project, target=target), readonly=readonly, mode=mode))
        desk.animation_level = "none"
        async with desk.run_test(size=size) as pilot:
            app = Opened(desk, pilot)
            await app.settled()
            yield app

    return opened


@pytest.fixture
def snapshot(monkeypatch: pytest.MonkeyPatch) -> Callable[[Opened, str], None]:
    """Compare the screen with what it was, as `snapshots/NAME-80x24.txt`."""
    monkeypatch.setattr(Header, "_age", lambda self: ("now", ""))

    def compare(app: Opened, name: str) -> None:
        size = app.desk.size
        path = SNAPSHOTS / f"{name}-{size.width}x{size.height}.txt"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(app.text())
        assert app.text() == path.read_text(), f"{path.name} is not what is shown; UPDATE_SNAPSHOTS=1 writes it anew"

    return compare
