"""The registry holds together: every action can be done, every key is free, no footer is too full."""

import importlib
import pkgutil
import re

import pytest

import openforge_tui.screens
from openforge.errors import ConfigError
from openforge_tui.actions import ACTIONS, BY_ID, MODES, check_keys, of_scopes
from openforge_tui.app import Desk
from openforge_tui.screens.view import View
from openforge_tui.widgets.grid import Grid
from openforge_tui.widgets.pane import Pane

for _found in pkgutil.iter_modules(openforge_tui.screens.__path__, "openforge_tui.screens."):
    importlib.import_module(_found.name)


def views(kind: type[View] = View) -> list[type[View]]:
    return [one for sub in kind.__subclasses__() for one in (sub, *views(sub))]


OWNERS: dict[str, type] = {"app": Desk, "view": View, "grid": Grid, "pane": Pane}
OWNERS |= {view.SCOPE: view for view in views() if view.SCOPE}


def test_ids_are_unique() -> None:
    assert len(BY_ID) == len(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS, ids=[action.id for action in ACTIONS])
def test_every_action_can_be_done(action) -> None:
    assert callable(getattr(OWNERS[action.scope], f"action_{action.name}", None))


@pytest.mark.parametrize("scope", sorted(set(OWNERS) - {"app", "view", "grid", "pane"}))
def test_a_screen_has_no_key_twice_and_at_most_seven_in_its_footer(scope: str) -> None:
    shown = of_scopes(scope, "view", "app")
    keys = [key for action in shown for key in action.keys.split(",")] + [mode.key for mode in MODES]
    assert sorted(keys) == sorted(set(keys))
    assert sum(action.footer for action in shown) <= 7


def test_what_changes_something_is_marked_so() -> None:
    harmless = {"open", "mark", "filter", "copy", "refresh", "pause", "help", "play", "run", "stop"}
    names = {action.name for action in ACTIONS if action.changes}
    assert {"up", "down", "cancel", "retry", "install", "build", "validate"} <= names
    assert not {action.id for action in ACTIONS if action.scope in ("view", "grid", "pane", "app") and action.changes}
    assert {"open", "mark", "filter"} <= harmless - names


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"runs.fly": "z"}, "no such action"),
        ({"runs.open": "x"}, "'x' is the key of runs.export"),
        ({"runs.open": "q"}, "'q' is the key of app.quit"),
        ({"runs.open": "4"}, "'4' is the key of mode.sql"),
        ({"runs.open": "z", "runs.export": "z"}, "'z' is the key of"),
    ],
)
def test_a_key_that_would_take_anothers_place_is_refused(keys: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        check_keys(keys)


def test_keys_may_be_exchanged_and_the_same_key_may_mean_something_on_another_screen() -> None:
    check_keys({"runs.open": "x", "runs.export": "enter"})
    check_keys({"runs.open": "z", "live.open": "z"})
