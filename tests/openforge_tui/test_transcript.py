from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from openforge.store.transcript import Transcript, Turn
from openforge_tui.transcript import CUT, Look, render, visible

_CALL = (
    *("state", "dialect", "stream", "prompt_len", "prompt_tokens", "added", "sampled", "completion_tokens"),
    *("finish_reason", "duration_s", "auxiliary", "parent_call_id", "weight_version_min", "weight_version_max"),
    *("error_class", "detail"),
)


def transcript(text: str, tokens: list[dict[str, Any]] | None = None) -> Transcript:
    message = {"role": "user", "text": text, "reasoning": None, "tool_calls": None, "tool_call_id": None}
    call = dict.fromkeys(_CALL)
    call |= {"call_id": "c1", "dialect": "chat", "state": "done", "break_reason": "root"}
    rollout = {"rollout_id": "r.t.h.0", "state": "done", "reward": None, "harness": "h", "harness_version": None}
    rollout |= {"attempt": 0, "calls": 1, "prompt_tokens": 1, "completion_tokens": 1, "samples": 0, "error_class": None}
    return Transcript(rollout, [Turn(1, call, [message], tokens or [])], [], [], [], [])


def drawn(found: Transcript, *, color: bool = False, full: bool = False, tokens: bool = False) -> str:
    console = Console(width=200, force_terminal=color, color_system="truecolor" if color else None, no_color=not color)
    with console.capture() as capture:
        console.print(render(found, Look(color=color, full=full), tokens=tokens))
    return capture.get()


@given(st.text())
def test_no_control_character_survives_but_newline_and_tab(text: str) -> None:
    shown = visible(text)
    assert not any(ord(char) < 32 and char not in "\n\t" for char in shown)
    assert not any(0x7F <= ord(char) <= 0x9F or 0x202A <= ord(char) <= 0x202E for char in shown)


@given(st.text(alphabet=st.characters()))
def test_what_is_shown_can_be_written_to_a_terminal(text: str) -> None:
    visible(f"{text}\udcff\ud800").encode()


@given(st.text(alphabet=st.sampled_from("[]/red\x1b\\bold m31;")))
def test_markup_in_a_text_is_text(text: str) -> None:
    assert "".join(visible(text).split()) in "".join(drawn(transcript(text)).split())


def test_a_long_text_is_cut_with_a_word_and_shown_whole_when_asked() -> None:
    text = "x" * (CUT + 7)
    assert "7 more characters; --full shows them" in drawn(transcript(text))
    assert "more characters" not in drawn(transcript(text), full=True)


@pytest.mark.parametrize(("logprob", "code"), [(-0.01, "32"), (-0.5, "33"), (-1.5, "38;5;208"), (-9.0, "31")])
def test_a_sampled_token_is_shaded_by_its_chance(logprob: float, code: str) -> None:
    token = {"token_id": 1, "text": "hi", "sampled": True, "logprob": logprob}
    console_text = drawn(transcript("", [token]), color=True, tokens=True)
    assert code in console_text
    assert "[hi]" in drawn(transcript("", [token]), tokens=True)


def test_a_token_without_text_shows_its_id() -> None:
    token = {"token_id": 17, "text": None, "sampled": False, "logprob": None}
    assert "<17>" in drawn(transcript("", [token]), tokens=True)


def test_marks_are_explained_and_the_least_likely_tokens_named() -> None:
    chances = [("sure", -0.01), (" sed", -2.0), ("\x1b[31m", -3.0), ("wc", -0.7), ("cat", -0.9)]
    tokens = [{"token_id": 1, "text": text, "sampled": True, "logprob": logprob} for text, logprob in chances]
    shown = drawn(transcript("", tokens), tokens=True)
    assert "[sampled] by the policy" in shown
    assert "least likely: `␛[31m` 0.05, `sed` 0.14, `cat` 0.41" in shown


def test_what_is_unknown_is_left_out_and_one_is_no_plural() -> None:
    shown = drawn(transcript(""))
    assert "None" not in shown
    assert "1 call " in shown
