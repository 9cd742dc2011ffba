"""Calls that a harness makes for itself: titles, summaries, quota checks. Recorded, tagged, and not trained.

The rule, all of it: a call that asks for at most one token; or a call without tools and with another system prompt, in
a rollout whose other calls have tools.
"""

from dataclasses import replace

from openforge.tokens.graph import Turn
from openforge.tokens.key import root_key, system_key
from proxy_addons.dialects.base import Request
from proxy_addons.rollouts import Rollout

_NO_TOOLS = root_key(())


def is_side_call(rollout: Rollout, request: Request) -> bool:
    """As far as it can be told while the rollout runs."""
    if request.max_tokens is not None and request.max_tokens <= 1:
        return True
    if request.tools:
        return False
    mains = _main_systems(rollout)
    return bool(mains) and system_key(request.messages) not in mains


def tag_early_side_calls(rollout: Rollout) -> list[Turn]:
    """At the seal: side calls that came before the first main call could not be told then. Returns those found."""
    turns = rollout.graph.turns
    mains = _main_systems(rollout)
    continued = {turn.parent for turn in turns}
    early = [
        turn
        for turn in turns
        if mains and not turn.auxiliary and turn.root == _NO_TOOLS and turn.system not in mains
        if turn.parent is None and turn not in continued
    ]  # fmt: skip
    for turn in early:
        turns[turns.index(turn)] = replace(turn, auxiliary=True)
    return early


def _main_systems(rollout: Rollout) -> set[bytes]:
    return {turn.system for turn in rollout.graph.turns if turn.root != _NO_TOOLS}
