"""The palette (ctrl+p): every action of the screen in front and every mode, as "noun: verb"."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.screen import Screen

from openforge_tui.actions import BY_ID, MODES

if TYPE_CHECKING:
    from openforge_tui.app import Desk


class Choice(NamedTuple):
    """What can be done now."""

    title: str
    help: str
    action: str  # as Textual runs it, in the screen's namespace
    id: str


def choices(screen: Screen[object]) -> Iterator[Choice]:
    """What `screen` offers: its enabled actions, then the modes."""
    seen = set()
    for _, binding, enabled, _ in screen.active_bindings.values():
        if enabled and binding.id in BY_ID and binding.id not in seen:
            seen.add(binding.id)
            action = BY_ID[binding.id]
            yield Choice(f"{action.scope}: {action.title}", action.help, binding.action, action.id)
    for mode in MODES:
        yield Choice(f"go to: {mode.noun}", mode.help, f"app.mode('{mode.noun}')", f"mode.{mode.noun}")


class ActionProvider(Provider):
    """Feeds Textual's palette."""

    async def discover(self) -> Hits:
        for choice in choices(self.screen):
            yield DiscoveryHit(choice.title, partial(self._run, choice), help=choice.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for choice in choices(self.screen):
            if (score := matcher.match(choice.title)) > 0:
                yield Hit(score, matcher.highlight(choice.title), partial(self._run, choice), help=choice.help)

    async def _run(self, choice: Choice) -> None:
        await perform(cast("Desk", self.app), self.screen, choice)


async def perform(desk: "Desk", screen: Screen[object], choice: Choice) -> None:
    """Do what a key would do where the focus is."""
    for _, (node, binding, _, _) in screen.active_bindings.items():
        if binding.id == choice.id:
            await desk.run_action(binding.action, node)
            return
    await desk.run_action(choice.action, screen)
