"""Mode 5: a training run while it trains; its curves, its steps, and the rollouts that each step learned from."""

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from openforge.errors import OpenForgeError
from openforge.store.connect import find_run
from openforge.store.training import Progress, Rollout, Step, TrainingLog, TrainingRuns
from openforge_tui.curves import charts
from openforge_tui.orchestrators import is_alive, pid_of, stop_orchestrator
from openforge_tui.screens.dialog import Choose, Confirm
from openforge_tui.screens.states import GOING_ON
from openforge_tui.screens.view import View
from openforge_tui.transcript import visible
from openforge_tui.widgets.binding import bindings
from openforge_tui.widgets.grid import Column, Grid
from openforge_tui.widgets.plot import Plot

NONE = "no training runs yet: r starts one, `./just learn` is the guided way"
COLUMNS = (
    Column("step", right=True),
    Column("reward", text=lambda value: f"{value:.3f}", right=True),
    Column("success", "success by harness"),
    Column("rollouts", right=True),
    Column("staleness", "stale", right=True),
    Column("samples", "rows", text=lambda value: f"{value:.2f}", right=True),
    Column("seconds", "s", text=lambda value: f"{value:.0f}", right=True),
    Column("evaluation"),
)
_SILENCE_S = 600.0
_MARKS = {"●": "green", "◐": "yellow", "○": "", "×": "red", "·": "dim"}
_LEGEND = "● 1  ◐ part  ○ 0  × error  · going on"
_WIDE = 120  # columns, from which two plots stand side by side


class TrainScreen(View):
    SCOPE = "train"
    MODE = "train"
    PERIOD_S = 2.0
    BINDINGS: ClassVar = bindings("train")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE, "-wide")]  # noqa: RUF012
    DEFAULT_CSS = """
    TrainScreen #told { height: auto; padding: 0 1; }
    TrainScreen #plots { height: 50%; min-height: 8; }
    TrainScreen #below { height: 1fr; border-top: solid $panel; }
    TrainScreen #groups { width: 42; height: 100%; padding: 0 1; border-left: solid $panel; }
    TrainScreen.-narrow #second, TrainScreen.-narrow #groups { display: none; }
    TrainScreen.-narrow.-groups #groups { display: block; width: 1fr; border-left: none; }
    TrainScreen.-narrow.-groups #below Grid { width: 16; }
    TrainScreen.-none #plots, TrainScreen.-none #below { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs: TrainingRuns | None = None
        self._log: TrainingLog | None = None
        self._wanted = ""  # "" = the newest
        self._progress: Progress | None = None
        self._chart = 0
        self._stopping: set[int] = set()

    def compose_body(self) -> Iterable[Widget]:
        yield Static(id="told", markup=False)
        with Horizontal(id="plots"):
            yield Plot(id="first")
            yield Plot(id="second")
        with Horizontal(id="below"):
            yield Grid(COLUMNS, "step")
            yield Static(id="groups", markup=False)

    # What is shown

    async def load(self) -> None:
        runs, self._progress = await self.desk.reader.work(self._look)
        self.set_class(self._progress is None, "-none")
        told = self.query_one("#told", Static)
        if self._progress is None:
            self.header.crumbs, self.header.note = "train", ""
            told.update(Text(NONE))
            told.display = True
            return
        progress = self._progress
        trouble = trouble_of(progress, time.time())
        told.update(Text(trouble, "bold yellow"))
        told.display = bool(trouble)
        self.header.crumbs = f"train › {progress.run_id}"
        place = f" · {len(runs)} training runs, t chooses" if len(runs) > 1 else ""
        self.header.note = f"{progress.state}, step {progress.last_step}{place}"
        await self._show_steps(progress)

    def _look(self) -> tuple[list[str], Progress | None]:
        root = self.desk.reader.store_root
        self._runs = self._runs or TrainingRuns(root)
        runs = self._runs.newest_first()
        run_id = self._wanted or next(iter(runs), "")
        if not run_id:
            return runs, None
        if self._log is None or self._log.run_id != run_id:
            self._log = TrainingLog(root, run_id)
        return runs, self._log.look()

    async def _show_steps(self, progress: Progress) -> None:
        grid = self.query_one(Grid)
        at_newest = grid.current is None or grid.cursor_row == 0
        rows = [row for row in progress.steps if self.matches(row)]
        grid.show(await self.desk.reader.work(grid.prepare, rows))
        if at_newest and grid.cursor_row != 0 and grid.ordered_by is None:
            grid.move_cursor(row=0)
            grid.scroll_to(y=0, animate=False, force=True)
        if self.filter_text:
            self.header.note = f"{len(rows)} of {len(progress.steps)} steps · {self.header.note}"
        await self._show_chosen()

    async def on_resize(self) -> None:
        self.look_again()

    async def on_grid_moved(self, event: Grid.Moved) -> None:
        await self._show_chosen()

    async def _show_chosen(self) -> None:
        """The curves with the chosen step marked, and that step's groups."""
        if self._progress is None or self._log is None:
            return
        row = self.query_one(Grid).current
        cursor = None if row is None or row["under_way"] else row["step"]
        found = charts(self._progress.curves)
        narrow = self.has_class("-narrow")
        count = len(found) + narrow  # a narrow screen shows the groups as one more
        self._chart %= max(1, count)
        self.set_class(narrow and self._chart == len(found), "-groups")
        for offset, plot in enumerate((self.query_one("#first", Plot), self.query_one("#second", Plot))):
            if not found:
                plot.show_lines([])
                continue
            at = (self._chart + offset) % len(found)
            title, series = found[at]
            plot.show_lines(series, title=f"{title}  ({at + 1} of {count})", x_title="step", cursor=cursor)
        groups = self.query_one("#groups", Static)
        if row is not None and groups.display:
            step = await self.desk.reader.work(self._log.step, row["step"])
            groups.update(groups_text(step, groups.content_size.width, groups.content_size.height))

    def copyable(self) -> str:
        return self._progress.run_id if self._progress is not None else ""

    # What can be done

    async def arrive(self, text: str) -> None:
        """`:train RUN`."""
        try:
            self._show_run(await self.desk.reader.work(find_run, self.desk.reader.store_root, text))
        except OpenForgeError as error:
            self.desk.tell(error)

    def _show_run(self, run_id: str | None) -> None:
        if run_id:
            self._wanted, self._progress = run_id, None
            self.look_again()

    async def on_grid_opened(self, event: Grid.Opened) -> None:
        await self.action_open()

    async def action_open(self) -> None:
        row = self.query_one(Grid).current
        if row is None or self._progress is None or self._log is None:
            return
        step = await self.desk.reader.work(self._log.step, row["step"])
        first, last = step.asked
        await self.desk.open_run(self._progress.run_id)
        told = f"-l step={first}" if first == last else f"-l step>={first},step<={last}"
        self.desk.screen.set_filter(told)  # type: ignore[attr-defined]

    async def action_curve(self) -> None:
        self._chart += 1
        await self._show_chosen()

    async def action_last_curve(self) -> None:
        self._chart -= 1
        await self._show_chosen()

    async def action_choose(self) -> None:
        if self._runs is None:
            return  # pressed before anything was read
        runs = await self.desk.reader.work(self._runs.newest_first)
        if not runs:
            self.say(NONE)
            return
        here = self._progress.run_id if self._progress is not None else ""
        options = [
            (
                run_id,
                run_id,
                ", ".join(filter(None, ["the newest" * (run_id == runs[0]), "this one" * (run_id == here)])),
            )
            for run_id in runs
        ]
        self.app.push_screen(Choose("Which training run?", options), self._show_run)

    def action_start(self) -> None:
        from openforge_tui.screens.run_form import RunForm

        self.app.push_screen(RunForm("train"))

    def action_resume(self) -> None:
        progress = self._progress
        if progress is None:
            self.say(NONE)
        elif progress.state == "paused":
            self.desk.hold(progress.run_id, progress.state)
        elif progress.state == "running":
            self.say(f"{progress.run_id} is running: there is nothing to resume")
        else:
            self.desk.start(f"resume {progress.run_id}", ["train", "--resume", progress.run_id])

    def action_hold(self) -> None:
        if self._progress is None:
            self.say(NONE)
        else:
            self.desk.hold(self._progress.run_id, self._progress.state)

    async def action_stop(self) -> None:
        progress = self._progress
        if progress is None or progress.state not in GOING_ON:
            self.say("no training is running here" if progress is None else f"{progress.run_id} is {progress.state}")
            return
        pid = await self.desk.reader.work(pid_of, self.desk.reader.store_root, progress.run_id)
        if pid is None:
            self.say(f"{progress.run_id}: its orchestrator has told no process; next: openforge status", error=True)
        elif pid in self._stopping:
            self.say(f"process {pid} was asked already; it ends with the step under way")
        else:
            self.app.push_screen(
                Confirm(
                    f"Stop training {progress.run_id}, process {pid}?",
                    detail="It ends at the end of the step under way, with a checkpoint, from which R goes on; a "
                    "pause ends with that. "
                    "One that has not made its first step ends at once.",
                ),
                lambda yes: self._stop(pid) if yes else None,
            )

    def _stop(self, pid: int) -> None:
        try:
            asked = stop_orchestrator(self.desk.jobs, pid)
        except OpenForgeError as error:
            return self.desk.tell(error)
        if asked:
            self._stopping.add(pid)
            self.say(f"asked process {pid} to stop at the end of its step")
        else:
            self.say(f"process {pid} has ended meanwhile")


def trouble_of(progress: Progress, now: float) -> str:
    """What is wrong with a training, and what to do; empty when nothing is."""
    run_id = progress.run_id
    if progress.state == "interrupted":
        return f"⚠ its orchestrator died after step {progress.last_step}: R goes on from the last checkpoint"
    if progress.state in ("failed", "error"):
        return f"⚠ it ended as {progress.state}: `openforge logs --trainer {run_id}` tells why, R goes on"
    if progress.state != "running":
        return ""
    if progress.trainer_pid and not is_alive(progress.trainer_pid):
        return f"⚠ its trainer, process {progress.trainer_pid}, is gone: it is started again from the last checkpoint"
    silent_s = now - (progress.heard_at or now)
    seconds = progress.curves.get("train.step_s")
    if silent_s > max(_SILENCE_S, 3 * seconds.values[-1] if seconds else 0.0):
        return f"⚠ no word from the trainer for {silent_s / 60:.0f} min: openforge logs --trainer {run_id}"
    return ""


def groups_text(step: Step, width: int, height: int) -> Text:
    """The groups of a step, a mark a rollout."""
    count = sum(len(group.rollouts) for group in step.groups)
    verb = "learned from" if step.learned else "has asked for"
    rows = [Text(f"step {step.step} {verb} {count} rollouts", "bold")]
    first, last = step.asked
    if (first, last) != (step.step, step.step):
        rows.append(Text(f"asked for at step {first}" + (f" to {last}" if last != first else ""), "dim"))
    if step.errors:
        rows.append(
            Text(f"{step.errors} more ended in an error of ours" if step.learned else f"{step.errors} in error")
        )
    rows.append(Text(_LEGEND, "dim"))
    names = [f"{visible(group.task.rpartition('/')[2])} {visible(group.harness)}" for group in step.groups]
    wide = min(max(map(len, names), default=0), max(10, width // 2))
    room = max(1, width - wide - 8)
    space = height - len(rows)
    fit = len(names) if len(names) <= space else max(0, space - 1)
    for name, group in list(zip(names, step.groups, strict=True))[:fit]:
        rows.append(_group_row(name, group.rollouts, wide, room))
    if fit < len(names):
        rows.append(Text(f"{len(names) - fit} more groups: enter lists their rollouts", "dim"))
    for row in rows:
        row.no_wrap, row.overflow = True, "ellipsis"
    return Text("\n").join(rows)


def _group_row(name: str, rollouts: Iterable[Rollout], wide: int, room: int) -> Text:
    marks = [mark_of(rollout) for rollout in rollouts]
    known = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    row = Text((name if len(name) <= wide else name[: wide - 1] + "…").ljust(wide) + " ")
    shown = marks if len(marks) <= room else marks[: max(0, room - 4)]
    for mark in sorted(shown, key=list(_MARKS).index):
        row.append(mark, _MARKS[mark])
    if len(shown) < len(marks):
        row.append(f" +{len(marks) - len(shown)}", "dim")
    return row.append(f" {sum(known) / len(known):.2f}" if known else "", "bold")


def mark_of(rollout: Rollout) -> str:
    """How a rollout ended, as one letter."""
    if rollout.state in ("error", "lost", "cancelled"):
        return "×"
    if rollout.reward is None:
        return "·"
    return "●" if rollout.reward >= 1 else "○" if rollout.reward <= 0 else "◐"
