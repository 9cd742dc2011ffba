"""Everything a key can do in the app, declared once: keys, footer, help, palette and the `:` line are drawn from here.

An action's id is `<scope>.<name>`; a screen (or widget) of that scope has the method `action_<name>`. Ids are what
`[app.keys]` remaps. Data only: no Textual, no screens.
"""

from collections.abc import Mapping
from typing import NamedTuple

from openforge.errors import ConfigError


class Action(NamedTuple):
    """One thing to do. `footer`: among the few shown below; `changes`: `--readonly` switches it off."""

    id: str
    keys: str
    title: str
    help: str
    footer: bool = False
    changes: bool = False

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]


class Mode(NamedTuple):
    """One of the six views; `noun` is what the `:` line calls it."""

    key: str
    noun: str
    help: str


MODES: tuple[Mode, ...] = (
    Mode("1", "overview", "This machine, the cluster, images, the policy; bring up, take down."),
    Mode("2", "runs", "Runs, their rollouts, and each rollout turn by turn."),
    Mode("3", "live", "Model calls in flight, and what goes on."),
    Mode("4", "sql", "Ask the store."),
    Mode("5", "train", "Reward, success by harness, staleness; from a point to its rollouts."),
    Mode("6", "promote", "The targets of this configuration, and what would differ there."),
)

ACTIONS: tuple[Action, ...] = (
    # Everywhere
    Action("app.help", "question_mark,f1", "help", "The keys of this screen.", footer=True),
    Action("app.command", "colon", "command", "Type a command: a view, an action, `open ID`.", footer=True),
    Action("app.back", "escape", "back", "One step back: closes what is open, then leaves the screen."),
    Action("app.last_mode", "minus", "last view", "To the view you came from."),
    Action("app.jump", "ctrl+o", "jump", "A letter on everything that can be reached; press it."),
    Action("app.log", "ctrl+l", "command log", "The commands that this app has run, for you to copy."),
    Action("app.jobs", "J", "jobs", "Long work that was started here: what it says, how it ended."),
    Action("app.compact", "f2", "compact", "Fewer lines around what you read, or all of them again."),
    Action("app.about", "f12", "about", "Versions and places, for a bug report."),
    Action("app.quit", "q,ctrl+q", "quit", "Leave. Runs and other work go on without the app."),
    # Every screen that shows what changes
    Action("view.refresh", "ctrl+r", "refresh", "Look again now."),
    Action("view.pause", "p", "pause", "Stop following, or go on: nothing moves while you read."),
    Action("view.filter", "slash", "filter", "TEXT, !TEXT, -f LETTERS, or -l COLUMN=VALUE."),
    Action("view.copy", "c", "copy", "Copy what the cursor is on: an id, or the text of a pane."),
    Action("grid.cursor_down", "down,j", "down", "The next row."),
    Action("grid.cursor_up", "up,k", "up", "The row before."),
    Action("grid.page_down", "pagedown,ctrl+f", "page down", "A page on."),
    Action("grid.page_up", "pageup,ctrl+b", "page up", "A page back."),
    Action("grid.cursor_table_start", "home,ctrl+home", "top", "The first row."),
    Action("grid.cursor_table_end", "end,G,ctrl+end", "end", "The last row; follows what comes, where rows come."),
    Action("grid.cursor_left", "left,h", "left", "Columns to the left."),
    Action("grid.cursor_right", "right", "right", "Columns to the right."),
    Action("grid.order", "o", "order", "Order by the next column."),
    Action("grid.reverse", "O", "reverse", "Turn the order round."),
    Action("pane.line_down", "down,j", "down", "A line on."),
    Action("pane.line_up", "up,k", "up", "A line back."),
    Action("pane.forward", "pagedown,ctrl+f", "page down", "A page on."),
    Action("pane.backward", "pageup,ctrl+b", "page up", "A page back."),
    Action("pane.top", "home", "top", "To the top."),
    Action("pane.bottom", "end,G", "end", "To the end; follows, where more comes."),
    Action("jobs.stop", "ctrl+d", "stop", "End this job in good order, as Ctrl-C does.", footer=True, changes=True),
    # 1
    Action("overview.up", "u", "up", "Bring the cluster of this target up.", footer=True, changes=True),
    Action("overview.down", "D", "down", "Remove the cluster with all that runs in it.", changes=True),
    Action("overview.fix", "enter", "do it", "Run the command that mends this finding.", footer=True, changes=True),
    Action("overview.build", "b", "build image", "Build the images that the run needs.", footer=True, changes=True),
    Action("overview.install", "i", "install", "Install a harness.", changes=True),
    Action("overview.validate", "v", "validate", "Prove the tasks valid by running them.", changes=True),
    Action("overview.run", "r", "run", "Start a run.", footer=True, changes=True),
    # 2
    Action("runs.open", "enter", "open", "The rollouts of this run.", footer=True),
    Action("runs.run", "r", "run", "Start a run: tasks, harnesses, samples.", footer=True, changes=True),
    Action("runs.cancel", "ctrl+d", "cancel", "End this run; what was graded stays.", footer=True, changes=True),
    Action(
        "runs.hold",
        "P",
        "pause",
        "Begin no more rollouts of this run, or go on; as `openforge pause`.",
        footer=True,
        changes=True,
    ),
    Action("runs.export", "x", "export", "Write this run to Parquet, JSONL, a .duckdb file, or one HTML page."),
    Action("runs.log", "l", "log", "What happened in this run."),
    Action("rollouts.open", "enter", "open", "This rollout, turn by turn.", footer=True),
    Action("rollouts.mark", "space", "mark", "Mark it, for comparing or for cancelling.", footer=True),
    Action("rollouts.compare", "v", "compare", "The marked rollout beside this one.", footer=True),
    Action("rollouts.group", "g", "group", "By task, by harness, by state, or each for itself.", footer=True),
    Action("rollouts.faults", "ctrl+z", "faults only", "Only what did not end well (done, reward above 0), or all."),
    Action("rollouts.cancel", "ctrl+d", "cancel", "End this rollout (or the marked ones).", changes=True),
    Action("rollouts.log", "l", "log", "What happened in this run."),
    Action("rollouts.retry", "r", "retry", "The same task and harness again, as a run of its own.", changes=True),
    Action("rollout.next_tab", "right_square_bracket", "next tab", "Messages, tokens, raw, outcome, log.", footer=True),
    Action("rollout.last_tab", "left_square_bracket", "last tab", "The tab before this one."),
    Action("rollout.play", "space", "play", "Play the rollout as it happened, or stop.", footer=True),
    Action("rollout.faster", "plus,equals_sign", "faster", "Play twice as fast."),
    Action("rollout.slower", "underscore", "slower", "Play half as fast."),
    Action("rollout.full", "f", "full", "Cut no text, or cut it again.", footer=True),
    Action("rollout.find", "n", "find next", "The next turn in which the filter's text stands."),
    Action("rollout.attempt", "a", "attempt", "Its other attempts, when there were several."),
    Action(
        "rollout.images", "i", "images", "The images that this turn sent, as this terminal can show them.", footer=True
    ),
    Action("image.next", "right,n", "next image", "The next image of this turn.", footer=True),
    Action("image.last", "left", "image before", "The image before this one.", footer=True),
    Action("image.write", "w", "write", "Write this image to a file.", footer=True),
    Action("compare.difference", "n", "next difference", "The next turn in which the two differ.", footer=True),
    # 3
    Action("live.open", "enter", "open", "The rollout that made this call.", footer=True),
    Action("live.group", "g", "group", "By shard, by harness, or each call for itself.", footer=True),
    # 4
    Action("sql.run", "ctrl+j,f5", "run", "Run the query.", footer=True),
    Action("sql.stop", "ctrl+k", "stop", "Stop the query.", footer=True),
    Action("sql.edit", "e", "edit", "From the rows back to the query; escape goes the other way."),
    Action("sql.open", "enter", "open", "What the id in this cell names, else the whole cell.", footer=True),
    Action("sql.saved", "f3", "saved", "Questions that ship with OpenForge.", footer=True),
    Action("sql.history", "f4", "history", "What you asked before."),
    Action("sql.chart", "f6", "chart", "A two-column result as bars or a line.", footer=True),
    Action("sql.export", "f7", "export", "Write all rows to Parquet, CSV or JSONL."),
    Action("sql.columns", "f8", "columns", "The views and their columns."),
    Action("sql.one_run", "f9", "one run", "Ask one run only, or every run again; as `openforge sql --run`."),
    # 5
    Action("train.open", "enter", "rollouts", "The rollouts that this step learned from.", footer=True),
    Action("train.start", "r", "train", "Start training.", footer=True, changes=True),
    Action(
        "train.stop",
        "ctrl+d",
        "stop",
        "Stop at the end of this step, with a checkpoint.",
        footer=True,
        changes=True,
    ),
    Action(
        "train.hold",
        "P",
        "pause",
        "Begin no more rollouts, or go on; the trainer waits with all it has in memory.",
        footer=True,
        changes=True,
    ),
    Action("train.resume", "R", "resume", "Go on: from the last checkpoint, or from a pause.", changes=True),
    Action("train.curve", "v", "next curve", "Reward, success, tokens, staleness, breaks, errors.", footer=True),
    Action("train.last_curve", "V", "last curve", "The curve before this one."),
    Action("train.choose", "t", "other run", "Another training run of this store."),
    # 6
    Action("promote.diff", "enter", "differences", "What this target changes.", footer=True),
)


def of_scopes(*scopes: str) -> list[Action]:
    """The actions of these scopes, in the order they are declared."""
    return [action for action in ACTIONS if action.scope in scopes]


BY_ID = {action.id: action for action in ACTIONS}
_MODE_KEYS = {f"mode.{mode.noun}": mode.key for mode in MODES}
_EVERYWHERE = {"app", "view", "mode"}  # scopes that share a screen with every other


def check_keys(keys: Mapping[str, str]) -> None:
    """Raise ConfigError when `[app.keys]` names an action that is none, or a key that another action has there."""
    default = {**{action.id: action.keys for action in ACTIONS}, **_MODE_KEYS}
    for name, typed in keys.items():
        if name not in default:
            raise ConfigError(f"[app.keys] {name}: there is no such action", hint="`?` in the app lists them by id")
        for other in default:
            taken = set(keys.get(other, default[other]).split(",")) & set(typed.split(","))
            if other != name and taken and _meet(name, other):
                key = min(taken)
                raise ConfigError(
                    f"[app.keys] {name}: {key!r} is the key of {other} already", hint=f"give {other} another one, too"
                )


def _meet(one: str, other: str) -> bool:
    """Whether two actions can be on one screen."""
    scopes = {one.partition(".")[0], other.partition(".")[0]}
    return len(scopes) == 1 or bool(scopes & _EVERYWHERE) or ("grid" in scopes and "pane" not in scopes)
