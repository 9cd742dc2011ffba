"""The app: six modes over one store. Thin: screens show, `reader` asks, `jobs` does; nothing is decided here.

Each long action is an `openforge` command (jobs.py), so that the app and the command line can never differ.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual import work
from textual.app import App
from textual.binding import BindingType
from textual.dom import DOMNode
from textual.events import Event, InputEvent
from textual.screen import Screen

from openforge.errors import OpenForgeError, UsageError
from openforge_tui import garbage
from openforge_tui.actions import MODES, check_keys
from openforge_tui.jobs import Job, Jobs, outcome
from openforge_tui.reader import Reader
from openforge_tui.screens.states import GOING_ON
from openforge_tui.screens.view import View
from openforge_tui.themes import ANSI_DARK, THEMES
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings, mode_bindings
from openforge_tui.widgets.palette import ActionProvider

if TYPE_CHECKING:
    from textual.actions import ActionParseResult

    from openforge.config import Loaded

_WATCH_S = 0.5
_SCREENS = {
    "overview": ("overview", "OverviewScreen"),
    "runs": ("runs", "RunsScreen"),
    "live": ("live", "LiveScreen"),
    "sql": ("sql", "SqlScreen"),
    "train": ("train", "TrainScreen"),
    "promote": ("promote", "PromoteScreen"),
}


_PRELOAD_S = 0.5  # after the first picture
_CALM_S = 3.0  # without a key


def _first_screen(noun: str) -> Callable[[], Screen[Any]]:
    def make() -> Screen[Any]:
        module, name = _SCREENS[noun]
        screen: Screen[Any] = getattr(import_module(f"openforge_tui.screens.{module}"), name)()
        return screen

    return make


@dataclass(frozen=True)
class Opening:
    """How the app was opened. `words`: the global options that were typed, for the commands it starts."""

    loaded: "Loaded"
    words: tuple[str, ...] = ()
    readonly: bool = False
    mode: str = "overview"

    def load(self, target: str | None = None, overrides: Mapping[str, str] | None = None) -> "Loaded":
        """The configuration as a command that is started now would find it. Raises ConfigError."""
        from openforge.config import load

        pairs = list(zip(self.words[::2], self.words[1::2], strict=True))
        typed = [value.split("=", 1) for option, value in pairs if option == "--set"]
        typed += [["store.path", value] for option, value in pairs if option == "--store"]
        chosen = {**dict(typed), **(overrides or {})}
        return load(self.loaded.project_dir, target=target or self.loaded.config.target.name, overrides=chosen)


class Desk(App[None]):
    """`Desk(opening).run()`."""

    TITLE = "openforge"
    CSS_PATH = "app.tcss"
    COMMANDS = {ActionProvider}  # noqa: RUF012
    COMMAND_PALETTE_BINDING = "ctrl+p"
    MODES = {noun: _first_screen(noun) for noun in _SCREENS}  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [*bindings("app"), *mode_bindings()]

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self.opening, self.loaded = opening, opening.loaded
        self.readonly = opening.readonly
        self.reader = Reader(self.loaded.store_root)
        self.desk_dir = self.loaded.store_root / "desk"
        self.jobs = Jobs(self.desk_dir / "jobs", opening.words, self.loaded.project_dir)
        self.running: dict[str, Job] = {}  # jobs, as long as they do
        self._started = asyncio.Event()
        self._last_mode = ""
        self._typed_at = 0.0  # by the clock of time.monotonic()
        self.ansi_theme_dark = ANSI_DARK
        for theme in THEMES:
            self.register_theme(theme)
        settings = self.loaded.config.app
        self.theme = settings.theme if settings.theme in self.available_themes else THEMES[0].name
        self.set_class(settings.compact, "-compact")
        self.set_keymap(dict(settings.keys))

    @property
    def target_name(self) -> str:
        return self.loaded.config.target.name

    @property
    def is_remote(self) -> bool:
        """Whether what is done here is done to a cluster elsewhere."""
        return self.loaded.config.target.kind == "kubernetes"

    @property
    def has_color(self) -> bool:
        """Whether colours can be told apart here; where they cannot, signs are used."""
        return not self.no_color and self.console.color_system is not None

    def on_mount(self) -> None:
        garbage.put_off()
        self.switch_mode(self.opening.mode)
        self.set_timer(_PRELOAD_S, self._preload)
        self._watch_jobs()

    @work(group="preload")
    async def _preload(self) -> None:
        """Make the other views before their keys are pressed, one at a time; they read nothing until they are shown."""
        try:
            for noun, (module, _) in _SCREENS.items():
                await self.reader.work(import_module, f"openforge_tui.screens.{module}")
                await self._init_mode(noun)
        finally:
            garbage.settle()
        while True:
            await asyncio.sleep(_CALM_S)
            if time.monotonic() - self._typed_at > _CALM_S:
                garbage.search()

    async def _close_all(self) -> None:
        self.workers.cancel_group(self, "preload")  # it must make no view while the others are being closed
        await super()._close_all()

    async def on_event(self, event: Event) -> None:
        if isinstance(event, InputEvent):
            self._typed_at = time.monotonic()
        await super().on_event(event)

    def on_unmount(self) -> None:
        garbage.restore()
        self.reader.close()

    # Going somewhere

    def delay_update(self, delay: float = 0.05) -> None:
        """Not at all: it hides how a view is put together, and here each is ready before its key is pressed."""

    def action_mode(self, noun: str) -> None:
        """To one of the six; the screens that are open in it stay open."""
        if noun != self.current_mode:
            self._last_mode = self.current_mode
            if isinstance(self.screen, View):
                self.screen.back_to = ""  # whoever left by hand does not come back by `back`
            self.switch_mode(noun)

    def action_last_mode(self) -> None:
        if self._last_mode:
            self.action_mode(self._last_mode)

    async def run_action(
        self,
        action: "str | ActionParseResult",
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """What an action cannot do is told; it does not end the app."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except OpenForgeError as error:
            self.tell(error)
            return True

    async def action_back(self) -> None:
        """One step back, as the screen in front understands it."""
        await self.run_action("screen.back")

    def hold(self, run_id: str, state: str) -> None:
        """Pause a run, or go on with one that is paused."""
        if state not in GOING_ON:
            return self.tell(UsageError(f"{run_id} does not go on: it is {state}"))
        word = "unpause" if state == "paused" else "pause"
        self.start(f"{word} {run_id}", [word, run_id])

    async def open_run(self, run_id: str) -> None:
        """The rollouts of a run, whichever screen asks."""
        from openforge_tui.screens.rollouts import RolloutsScreen

        await self._open(RolloutsScreen(run_id))

    async def open_rollout(self, rollout_id: str, *, call_id: str | None = None) -> None:
        """One rollout, at one of its calls when it is named."""
        from openforge_tui.screens.rollout import RolloutScreen

        await self._open(RolloutScreen(rollout_id, call_id=call_id))

    async def _open(self, screen: View) -> None:
        """Show it among the runs; `back` leads to where it was opened from."""
        screen.back_to = "" if self.current_mode == "runs" else self.current_mode
        self.action_mode("runs")
        await self.push_screen(screen)

    async def open_id(self, text: str) -> bool:
        """Open what an id names: a run, a rollout or a call (`CALL@ROLLOUT`); False when it is none."""
        from openforge.store.connect import find_run
        from openforge.store.transcript import find_rollout

        try:
            if "." in text:
                _, rollout_id = await self.reader.work(find_rollout, self.loaded.store_root, text)
                await self.open_rollout(rollout_id)
            else:
                await self.open_run(await self.reader.work(find_run, self.loaded.store_root, text))
        except OpenForgeError as error:
            self.tell(error)
            return False
        return True

    # Doing something

    def start(self, title: str, argv: Sequence[str]) -> Job | None:
        """Start `openforge ARGV …`; what it says is in the jobs (j). None when it could not be started."""
        try:
            job = self.jobs.start(title, argv)
        except OpenForgeError as error:
            self.tell(error)
            return None
        self.notify(f"started: {visible(job.command)}", title=title, markup=False)
        self.running[job.id] = job
        self._started.set()
        return job

    @work(group="jobs")
    async def _watch_jobs(self) -> None:
        """Say how jobs end, those that an earlier app started included; looks at nothing while none runs."""
        try:
            self.running |= {job.id: job for job in await self.reader.work(self.jobs.all) if job.running}
        except OpenForgeError as error:
            self.tell(error)
        while True:
            if not self.running:
                self._started.clear()
                await self._started.wait()
            for job in [await self.reader.work(self.jobs.again, job) for job in list(self.running.values())]:
                if not job.running:
                    del self.running[job.id]
                    self._tell_end(job)
            await asyncio.sleep(_WATCH_S)

    def _tell_end(self, job: Job) -> None:
        told = outcome(job)
        done = f"{job.title} done: {told.result}" if told.result else job.title
        lines = [done if job.state == "done" else f"{job.title}: {told.meaning}"]
        lines += [told.error] if told.error else []
        lines += [f"next: {told.next}"] if told.next else []
        kind: Literal["information", "warning", "error"] = "information"
        if job.state != "done":
            kind = "warning" if job.state == "stopped" else "error"
        self.notify(visible("\n".join(lines)), title=f"job {job.state}", severity=kind, timeout=10, markup=False)
        if self.is_running and isinstance(self.screen, View):  # the app may be on its way out
            self.screen.look_again()

    def copy(self, text: str) -> None:
        """To the clipboard, and say by what means."""
        from openforge_tui import clipboard

        by = clipboard.copy(text, self._write)
        what = text if len(text) <= 60 and "\n" not in text else f"{len(text)} characters"
        self.notify(f"copied {visible(what)} by {by}", markup=False)

    def _write(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()

    def tell(self, error: OpenForgeError) -> None:
        """An error, with what to do next."""
        hint = f"\nnext: {error.hint}" if error.hint else ""
        self.notify(visible(error.summary + hint), severity="error", timeout=10, markup=False)

    def note_fault(self, trace: str) -> Path:
        """Keep a traceback of our own; returns where."""
        path = self.desk_dir / "faults.log"
        try:
            self.desk_dir.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{trace}\n")
        except OSError as error:
            self.log.error(trace, error)
        return path

    def action_help(self) -> None:
        from openforge_tui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.screen))

    async def action_command(self) -> None:
        from openforge_tui.screens.command import CommandLine

        await self.push_screen(CommandLine(self.screen), self._typed)

    async def _typed(self, line: str | None) -> None:
        from openforge_tui.screens.command import obey

        if line:
            await obey(self, line)

    def action_log(self) -> None:
        from openforge_tui.screens.command_log import CommandLogScreen

        self.push_screen(CommandLogScreen())

    def action_jobs(self) -> None:
        from openforge_tui.screens.jobs import JobsScreen

        if not isinstance(self.screen, JobsScreen):
            self.push_screen(JobsScreen())

    def action_jump(self) -> None:
        from openforge_tui.screens.jump import JumpScreen

        self.push_screen(JumpScreen(self.screen))

    def action_about(self) -> None:
        from openforge_tui.screens.about import AboutScreen

        self.push_screen(AboutScreen())

    def action_compact(self) -> None:
        self.toggle_class("-compact")

    async def action_quit(self) -> None:
        """Leave; what still runs goes on, which is said on the way out."""
        self.exit(message=self._left_running())

    def _left_running(self) -> str | None:
        try:
            going_on = [job for job in self.jobs.all() if job.running]
        except OSError:  # whoever wants to leave may, whatever became of the store
            going_on = list(self.running.values())
        if not going_on:
            return None
        lines = [
            f"  {job.command}   (since {time.strftime('%H:%M', time.localtime(job.started_at))})" for job in going_on
        ]
        return "\n".join(["still going on, without the app:", *lines, "openforge opens it again"])


def open_desk(opening: Opening) -> int:
    """Run the app to its end; returns the exit code."""
    check_keys(opening.loaded.config.app.keys)
    assert opening.mode in {mode.noun for mode in MODES}
    desk = Desk(opening)
    desk.run()
    return desk.return_code or 0
