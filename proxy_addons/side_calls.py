"""Calls that a harness makes for itself: titles, summaries, quota checks. Recorded, tagged, and not trained.

The rule, all of it: a call that asks for at most one token; or a call without tools, not part of the main conversation
and with another system prompt, in a rollout whose calls otherwise have tools.
"""

from dataclasses import replace

from openforge.tokens.graph import Turn
from openforge.tokens.key import root_key
from openforge.tokens.message import Message
from proxy_addons.dialects.base import Request
from proxy_addons.rollouts import Rollout

_NO_TOOLS = root_key(())


def is_side_call(rollout: Rollout, request: Request) -> bool:
    """As far as it can be told while the rollout runs."""
    if request.max_tokens is not None and request.max_tokens <= 1:
        return True
    if request.tools:
        return False
    mains = [turn for turn in rollout.graph.turns if turn.root != _NO_TOOLS]
    return bool(mains) and _system(request.messages) not in {_system(_first(turn).messages) for turn in mains}


def tag_early_side_calls(rollout: Rollout) -> list[Turn]:
    """At the seal: side calls that came before the first main call could not be told then. Returns those found."""
    turns = rollout.graph.turns
    mains = {_system(_first(turn).messages) for turn in turns if turn.root != _NO_TOOLS}
    parents = {turn.parent.call_id for turn in turns if turn.parent}
    early = [
        turn
        for turn in turns
        if mains and not turn.auxiliary and turn.root == _NO_TOOLS and turn.parent is None
        and turn.call_id not in parents and _system(turn.messages) not in mains
    ]  # fmt: skip
    for turn in early:
        turns[turns.index(turn)] = replace(turn, auxiliary=True)
    return early


def _first(turn: Turn) -> Turn:
    while turn.parent is not None:
        turn = turn.parent
    return turn


def _system(messages: tuple[Message, ...]) -> str:
    return "\n".join(message.text for message in messages if message.role == "system")
