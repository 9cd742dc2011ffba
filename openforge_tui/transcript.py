"""A rollout for people: turn by turn, with sampled tokens marked.

Pure: a transcript in, Rich renderables out, the same for the command and the app. Everything that a model or a program
wrote is plain text: never markup, and control characters are shown as signs instead of reaching the terminal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

if TYPE_CHECKING:  # `visible` is wanted everywhere, the store is not
    from openforge.store.transcript import Row, Transcript, Turn

CUT = 2000  # characters of a message shown unless all are asked for
WIRE_CUT = 20_000  # of a request or response as it went over the wire
SYSTEM_CUT = 400  # of a system prompt: the same in every rollout, and seldom what one came to read
TOKENS_CUT = 120  # tokens of a stretch that was not sampled
UNLIKELY = 3  # tokens named under a turn
_DOUBT = math.log(0.9)
_ROLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_STATES = {"done": "green", "failed": "yellow", "error": "red", "lost": "red", "cancelled": "yellow"}
_CONTINUES = ("root", "append")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\U000e0000-\U000e007f]"
)
# How likely a sampled token was, from certain to surprising.
_SHADES = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "bold red"))


@dataclass(frozen=True)
class Look:
    """How it is shown: `color=False` marks sampled tokens with brackets, `full` cuts nothing, `lift` says how to."""

    color: bool = True
    full: bool = False
    lift: str = "--full shows them"


def visible(text: str) -> str:
    """`text` with each control character as a sign: ESC as ␛, a C1 or bidi control as its code. Newlines, tabs stay.

    So is a lone surrogate (a file name that is no UTF-8 has them), which no terminal takes.
    """
    return _CONTROL.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"\\u{code:04x}"


def render(found: Transcript, look: Look, *, tokens: bool = False) -> RenderableType:
    """Everything there is to see."""
    parts: list[RenderableType] = [_head(found)]
    for turn in found.turns:
        parts += [Text(), *_turn(turn, look, tokens=tokens)]
    parts += [Text(), Rule("outcome", align="left", style="dim"), *_outcome(found)]
    return Group(*parts)


def render_turn(turn: Turn, look: Look) -> RenderableType:
    """One turn's call and messages."""
    return Group(*_turn(turn, look, tokens=False))


def render_tokens(rows: list[Row], look: Look) -> RenderableType:
    """The tokens of one turn: which were sampled, how likely each was, which are trained, by which weights."""
    sampled = [row for row in rows if row["sampled"]]
    trained = sum(bool(row.get("trained")) for row in rows)
    versions = list(dict.fromkeys(str(row["weight_version"])[:8] for row in sampled if row["weight_version"]))
    facts = [
        f"{len(rows) - len(sampled)} given, {len(sampled)} sampled, {trained} trained",
        f"weights {' then '.join(versions)}" if versions else "",
        f"mean surprisal {surprisal:.3f}" if (surprisal := _surprisal(sampled)) is not None else "",
    ]
    parts: list[RenderableType] = [
        Text(visible(" · ".join(filter(None, facts))), "bold"),
        Text(_legend(look.color, mask=True), "dim"),
        Text(),
        _tokens(rows, look),
    ]
    if unlikely := _unlikely(rows):
        parts += [Text(), Text(f"least likely: {unlikely}", "dim")]
    return Group(*parts)


def _surprisal(sampled: list[Row]) -> float | None:
    known = [-float(row["logprob"]) for row in sampled if row["logprob"] is not None]
    return sum(known) / len(known) if known else None


def render_wire(wire: Row, look: Look) -> RenderableType:
    """A call as it went over the wire."""
    parts: list[RenderableType] = []
    for name in ("request", "response"):
        parts += [Rule(Text(name), align="left", style="dim"), Text(_cut(_pretty(wire[name]), look, WIRE_CUT)), Text()]
    return Group(*parts)


def _pretty(text: str | None) -> str:
    if text is None:
        return "not recorded"
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def render_outcome(found: Transcript) -> RenderableType:
    """Grade, samples, what was refused, what it tried to reach."""
    return Group(_head(found), Text(), *_outcome(found))


def _head(found: Transcript) -> Text:
    row = found.rollout
    line = Text(row["rollout_id"], style="bold")
    line.append(f"\n{row['state']}", _STATES.get(row["state"], "blue"))
    facts = [
        f"reward {row['reward']:g}" if row["reward"] is not None else "no reward",
        f"{row['harness']} {row['harness_version'] or ''}".strip(),
        f"attempt {row['attempt']}" if row["attempt"] else "",
        _count(row["calls"], "call"),
        f"{row['prompt_tokens'] or 0} → {row['completion_tokens'] or 0} tokens",
        _count(row["samples"], "sample"),
    ]
    line.append(visible("".join(f" · {fact}" for fact in facts if fact)))
    if row["error_class"]:
        line.append(f"\n{row['error_class']}: {visible(row['detail'] or '')}", "red")
    return line


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _turn(turn: Turn, look: Look, *, tokens: bool) -> Iterator[RenderableType]:
    call = turn.call
    yield Rule(Text(f"turn {turn.number}"), align="left", style="dim")
    yield _call_line(call)
    if call["break_reason"] and call["break_reason"] not in _CONTINUES:
        yield Text(f"break: {visible(call['break_reason'])}", "bold yellow")
    if call["error_class"]:
        yield Text(f"{call['state']}: {visible(call['error_class'])}: {visible(call['detail'] or '')}", "red")
    elif call["state"] != "done":
        yield Text(f"{call['state']}: no answer was recorded", "red")
    if turn.unread:
        yield Text(_unread_note(turn), "yellow")
    for message in turn.message_rows():
        yield from _message(message, look)
    if tokens:
        yield Text("tokens", "bold").append(f"  {_legend(look.color)}", "not bold dim")
        yield _tokens(turn.tokens, look)
        if unlikely := _unlikely(turn.tokens):
            yield _indented(f"least likely: {unlikely}", "dim")


def _unread_note(turn: Turn) -> str:
    """Of a call that was passed on without being read; what was asked is shown as it was sent."""
    count = sum(len(said.images) for said in turn.asked or ())
    given = f"{_count(count, 'image')} went to the provider; " if count else ""
    asked = "what was asked was not kept; " if turn.asked == [] else ""
    return f"not read by the recorder: {given}{asked}no token ids, never trained"


def _call_line(call: Row) -> Text:
    prompt_len = call["prompt_len"] if call["prompt_len"] is not None else call["prompt_tokens"]
    sampled, answered = call["sampled"], call["completion_tokens"]
    facts = [
        call["call_id"],
        f"{call['dialect']}{', stream' if call['stream'] else ''}",
        f"{prompt_len} in the prompt" if prompt_len is not None else "",
        f"+{call['added']} added" if call["added"] is not None else "no ids",
        f"{sampled} sampled" if sampled is not None else f"{answered} answered" if answered is not None else "",
        call["finish_reason"],
        f"{call['duration_s']:.1f} s" if call["duration_s"] is not None else "",
        _weights(call),
        "side call" if call["auxiliary"] else "",
        f"parent {call['parent_call_id']}" if call["break_reason"] not in _CONTINUES and call["parent_call_id"] else "",
    ]
    return Text(visible(" · ".join(str(fact) for fact in facts if fact)), "dim")


def _weights(call: Row) -> str:
    low, high = (str(call[name] or "")[:8] for name in ("weight_version_min", "weight_version_max"))
    return "" if not low else f"weights {low}" if low == high else f"weights {low} to {high}"


def _message(message: Row, look: Look) -> Iterator[RenderableType]:
    role = message["role"]
    label = f"{role} {message['tool_call_id']}" if message["tool_call_id"] else role
    yield Text(visible(label), f"bold {_ROLES.get(role, 'white')}")
    if message["reasoning"]:
        yield _indented(_cut(message["reasoning"], look), "dim italic")
    if message["text"]:
        yield _indented(_cut(message["text"], look, SYSTEM_CUT if role == "system" else CUT))
    for line in message.get("images", ()):
        yield _indented(visible(line), "bold cyan")
    for call in message["tool_calls"] or ():
        line = Text("→ ", "green").append(visible(call["name"]), "bold").append(f" {_cut(call['arguments'], look)}")
        yield Padding(line, (0, 0, 0, 2))


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, 2))


def _cut(text: str, look: Look, most: int = CUT) -> str:
    if look.full or len(text) <= most:
        return visible(text)
    return f"{visible(text[:most])} … {len(text) - most} more characters; {look.lift}"


def _tokens(rows: list[Row], look: Look) -> Padding:
    text = Text()
    given = next((n for n, row in enumerate(rows) if row["sampled"]), len(rows))
    if not look.full and given > TOKENS_CUT:
        skipped = given - TOKENS_CUT
        text.append(f"… {skipped} prompt tokens; {look.lift} …\n", "dim italic")
        rows = rows[skipped:]
    version = None
    for row in rows:
        piece = f"<{row['token_id']}>" if row["text"] is None else visible(row["text"])
        piece = piece.replace("\n", "⏎\n")
        if row["sampled"] and row.get("weight_version") != version:
            if version is not None:
                text.append(f"‹weights {str(row['weight_version'])[:8]}›", "reverse")
            version = row.get("weight_version")
        if not row["sampled"]:
            text.append(piece, "dim")
        elif look.color:
            untrained = " strike" if row.get("trained") is False else ""
            text.append(piece, f"{_shade(row['logprob'])} underline{untrained}")
        else:
            text.append(f"[{piece}]" if row.get("trained") is not False else f"({piece})")
    return Padding(text, (0, 0, 0, 2))


def _legend(color: bool, *, mask: bool = False) -> str:
    """What the marks mean; with the `mask`, also which sampled tokens are not trained."""
    if not color:
        untrained = " (sampled but not trained)," if mask else ""
        return f"[sampled] by the policy,{untrained} the rest was given"
    shades = ", ".join(f"{style.removeprefix('bold ').replace('_', ' ')} ≥ {floor:g}" for floor, style in _SHADES[:-1])
    untrained = " (struck: not trained)" if mask else ""
    return f"underlined: sampled by the policy{untrained}; its probability: {shades}, red below"


def _unlikely(rows: list[Row]) -> str:
    """The sampled tokens the policy was least sure of, each with its probability."""
    doubtful = [row for row in rows if row["sampled"] and row["logprob"] is not None and row["logprob"] < _DOUBT]
    doubtful.sort(key=lambda row: float(row["logprob"]))
    told = []
    for row in doubtful[:UNLIKELY]:
        text = f"<{row['token_id']}>" if row["text"] is None else visible(row["text"]).strip() or "⏎"
        told.append(f"`{text}` {math.exp(row['logprob']):.2g}")
    return ", ".join(told)


def _shade(logprob: float | None) -> str:
    if logprob is None:
        return "white"
    chance = math.exp(min(logprob, 0.0))
    return next(style for floor, style in _SHADES if chance >= floor)


def _outcome(found: Transcript) -> Iterator[Text]:
    for grade in found.grades:
        line = Text(f"reward {grade['reward']:g}", "bold")
        yield line.append(f" {visible(_details(grade['details']))}", "dim")
    for row in found.samples:
        kind = "main" if row["is_main"] else "side"
        facts = f"{row['tokens']} tokens, {row['trained']} trained, weight {row['weight']:g}, {row['reason']}"
        yield Text(visible(f"sample {row['sample_id']}: {kind}, {facts}"))
    for row in found.refused:
        yield Text(visible(f"{row['what']} refused: {row['reason']} {row['detail'] or ''}".rstrip()), "yellow")
    for row in found.egress:
        allowed = row["decision"] == "allow"
        where = f"{row['host']}:{row['port']}" if row["port"] else row["host"]
        told = f"{'reached' if allowed else 'refused to reach'} {where} ({row['rule'] or 'no rule'})"
        yield Text(visible(told), "" if allowed else "yellow")
    if not (found.grades or found.samples or found.refused or found.egress):
        yield Text("nothing yet", "dim")


def _details(details: str | None) -> str:
    if not details:
        return ""
    value: Any = json.loads(details)
    return " ".join(f"{name}={item}" for name, item in value.items()) if isinstance(value, dict) else str(value)
