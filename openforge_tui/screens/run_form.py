"""The form that starts a run or a training: it shows the exact command, checks it as the command would, and starts it.

What the fields are and what they mean stands in start_form.py.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Select, Static

from openforge.errors import OpenForgeError
from openforge_tui.jobs import Job, run_id_of
from openforge_tui.start_form import FORMS, TARGET, Checked, Field, Kind, check, command_of, shown, values_of
from openforge_tui.transcript import visible

if TYPE_CHECKING:
    from openforge.config import Loaded
    from openforge_tui.app import Desk

_PAUSE_S = 0.15  # of typing, before it is checked
_LOOK_S = 0.3
_BASES = (TARGET, "trainer.recipe")  # what other fields take their values from


class RunForm(ModalScreen[Job | None]):
    """`RunForm("run")` or `RunForm("train")`; ends with the job that it started. `preset`: values by key."""

    BINDINGS: ClassVar = [
        Binding("ctrl+j", "start", "start", priority=True),
        Binding("escape", "dismiss(None)", "leave"),
    ]
    CSS = """
    RunForm .dialog { width: 90%; max-width: 96; padding: 0 1; }
    RunForm .row { height: 1; }
    RunForm .row Label { width: 12; color: $text-muted; }
    RunForm .row Input, RunForm .row Select { width: 1fr; }
    RunForm .error { height: auto; margin-left: 12; color: $text-error; display: none; }
    RunForm .error.-shown { display: block; }
    RunForm #about { margin: 1 0 0 12; color: $text-muted; height: 1; }
    RunForm #command { height: auto; margin-top: 1; }
    RunForm #told { height: auto; }
    """

    def __init__(self, kind: Kind = "run", *, preset: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.fields = FORMS[kind]
        self._preset = dict(preset or {})
        self._given: dict[str, str] = {}  # what was filled in, and not typed
        self.checked: Checked | None = None

    @property
    def desk(self) -> "Desk":
        return cast("Desk", self.app)

    def compose(self) -> ComposeResult:
        loaded = self.desk.loaded
        self._given = values_of(loaded, self.fields) | self._preset
        title = "Start a run" if self.kind == "run" else "Start training"
        with VerticalScroll(classes="dialog", can_focus=False) as box:
            box.border_title = title
            for one in self.fields:
                with Horizontal(classes="row"):
                    yield Label(one.label)
                    yield self._widget(one, loaded)
                yield Static(id=f"error-{_css(one)}", classes="error", markup=False)
            yield Static(id="about", markup=False)
            yield Static(id="command", markup=False)
            yield Static(id="told", markup=False)
            yield Label(Text("\nenter or ctrl+j starts it · tab next field · esc leaves", "dim"))

    def _widget(self, one: Field, loaded: "Loaded") -> Input | Select[str]:
        value = self._given[one.key]
        if one.choices is None:
            return Input(value, id=_css(one), compact=True, select_on_focus=False)
        options = [(name, name) for name in one.choices(loaded)]
        chosen = value if value in {name for name, _ in options} else Select.NULL
        return Select(options, value=chosen, allow_blank=one.key != TARGET, prompt="none", id=_css(one), compact=True)

    def on_mount(self) -> None:
        self.query("Input").first().focus()
        self._look()

    def on_descendant_focus(self) -> None:
        focused = self.focused
        for one in self.fields:
            if focused is not None and focused.id == _css(one):
                self.query_one("#about", Static).update(one.about)

    @property
    def values(self) -> dict[str, str]:
        """What stands in the fields, by key."""
        return {one.key: self._value(one) for one in self.fields}

    def _value(self, one: Field) -> str:
        widget = self.query_one(f"#{_css(one)}")
        if isinstance(widget, Input):
            return widget.value
        value = cast("Select[str]", widget).value
        return value if isinstance(value, str) else ""

    # Checking

    def on_input_changed(self, event: Input.Changed) -> None:
        self._look()

    def on_select_changed(self, event: Select.Changed) -> None:
        if event.select.id in {name.replace(".", "-") for name in _BASES}:
            self._fill()
        self._look()

    @work(group="fill", exclusive=True)
    async def _fill(self) -> None:
        """Fields that nobody has typed in take what the chosen target and recipe say."""
        values = self.values
        typed = {"trainer.recipe": recipe} if (recipe := values.get("trainer.recipe")) else {}
        try:
            loaded = await self.desk.reader.work(self.desk.opening.load, values[TARGET], typed)
        except OpenForgeError:
            return  # the check tells
        given = values_of(loaded, self.fields)
        for one in self.fields:
            if one.key not in _BASES and values[one.key] == self._given[one.key]:
                self.query_one(f"#{_css(one)}", Input).value = given[one.key]
                self._given[one.key] = given[one.key]

    def _look(self) -> None:
        command = shown(self.desk.jobs.words(command_of(self.kind, self.values)))
        self.query_one("#command", Static).update(Text("$ ", "dim").append(visible(command), "bold"))
        self.checked = None
        self._check_soon()

    @work(group="check", exclusive=True)
    async def _check_soon(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        await self._check()

    async def _check(self) -> Checked:
        checked = await self.desk.reader.work(check, self.kind, self.values, self.desk.opening.load)
        for one in self.fields:
            self._show_error(one, checked.errors.get(one.key, ""))
        told = self.query_one("#told", Static)
        if whole := checked.errors.get(""):
            told.update(Text(visible(whole), "bold red"))
        else:
            told.update(Text(checked.told, "green") if checked.count else Text("not as it stands", "bold red"))
        self.checked = checked
        return checked

    def _show_error(self, one: Field, error: str) -> None:
        line = self.query_one(f"#error-{_css(one)}", Static)
        line.set_class(bool(error), "-shown")
        line.update(f"✗ {visible(error)}" if error else "")

    # Starting

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        await self.action_start()

    async def action_start(self) -> None:
        values = self.values
        if (await self._check()).errors or values != self.values:
            return
        desk, title = self.desk, "run" if self.kind == "run" else "train"
        job = desk.start(title, command_of(self.kind, values))
        if job is None:
            return
        self.dismiss(job)
        desk.action_mode("runs" if self.kind == "run" else "train")
        if self.kind == "run":
            desk.run_worker(follow(desk, job), group="follow-run")


async def follow(desk: "Desk", job: Job) -> None:
    """Open the run of a job once it has begun, unless the person went elsewhere meanwhile."""
    while (run_id := await desk.reader.work(run_id_of, job)) is None:
        if not (await desk.reader.work(desk.jobs.again, job)).running:
            return  # how it ended is told anyway
        await asyncio.sleep(_LOOK_S)
    if desk.current_mode == "runs" and len(desk.screen_stack) == 1:
        await desk.open_run(run_id)
    else:
        desk.notify(f"run {run_id} has begun; `:open {run_id}` goes there", markup=False)


def _css(one: Field) -> str:
    return one.key.replace(".", "-")
