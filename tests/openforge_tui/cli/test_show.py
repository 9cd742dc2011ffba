import csv
import io
import json

from openforge.images import size_text
from tests.openforge.pictures import b64, encoded
from tests.openforge_tui.cli.conftest import EVIL


def test_a_rollout_is_shown_turn_by_turn(run, typed, capfd) -> None:
    assert typed("show", "latest.t.react") == 0
    shown = capfd.readouterr().out
    for part in ("r0000000aaa.t.react.0", "turn 1", "turn 3", "user", "hello", "→ shell", "reward 1", "sample"):
        assert part in shown
    assert "tokens\n" not in shown


def test_sampled_tokens_stand_in_brackets_where_there_is_no_colour(run, typed, capfd) -> None:
    assert typed("show", "latest.t.react", "--tokens", "--turn", "1") == 0
    shown = "".join(capfd.readouterr().out.split())
    ids = run.truth
    call = ids.calls["r0000000aaa.t.react.0"][0]
    assert "".join(f"[t{token}]" for token in ids.answers[call]) in shown
    assert "".join(f"t{token}" for token in ids.prompts[call]) in shown


def test_breaks_egress_and_refusals_are_shown_with_their_reasons(run, typed, capfd) -> None:
    run.call("r0000000aaa.t.pi.1", None, break_reason="fork:history-rewrite")
    assert typed("show", "latest.t.pi") == 0
    shown = capfd.readouterr().out
    assert "break: fork:history-rewrite" in shown
    assert "refused to reach example.com:443 (proxy-only)" in shown
    assert "sample refused: bad_logprob" in shown


def test_text_of_a_model_is_never_obeyed_and_its_controls_are_seen(run, typed, capfd) -> None:
    assert typed("show", "latest.t.pi") == 0
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]bold?[/red] ␛[31mred␛]0;title␇ \\u202eevil" in shown


def test_an_error_says_its_class(run, typed, capfd) -> None:
    assert typed("show", "latest.t.codex") == 0
    assert "sandbox: [red]bold?" in capfd.readouterr().out


def test_as_data(run, typed, capfd) -> None:
    assert typed("show", "latest.t.react", "-o", "json") == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found["turns"]) == 3
    assert found["rollout"]["reward"] == 1.0
    assert typed("show", "latest.t.react", "-o", "csv") == 0
    assert len(list(csv.DictReader(io.StringIO(capfd.readouterr().out)))) == 6
    assert typed("show", "latest.t.react", "--tokens", "-o", "jsonl") == 0
    assert len(capfd.readouterr().out.splitlines()) == 240


def test_what_is_not_there_is_told(run, typed, capfd) -> None:
    assert typed("show", "latest.nope") == 2
    assert typed("show", "latest.t.react", "--turn", "9") == 2
    assert typed("show", "latest.t.react", "--attempt", "9") == 2
    told = capfd.readouterr().err
    assert "no rollout is called" in told
    assert "counted from 1" in told
    assert "has no attempt 9" in told


def test_without_an_argument_it_is_the_newest_rollout(run, typed, capfd) -> None:
    assert typed("show", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out)["rollout"]["rollout_id"].startswith(run.run_id)


def test_an_ambiguous_name_lists_what_it_could_be(run, typed, capfd) -> None:
    assert typed("show", "latest.t") == 2
    told = capfd.readouterr().err
    assert "could be 3 rollouts" in told
    assert f"openforge show {run.run_id}.t.pi.1" in told


def test_an_image_stands_in_its_message(run, typed, capfd) -> None:
    rollout = f"{run.run_id}.look.react.0"
    run.state(rollout, "running")
    url = f"data:image/png;base64,{b64(encoded())}"
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    first = [{"role": "user", "content": parts}]
    run.unread_call(rollout, first)
    far = {"type": "image_url", "image_url": {"url": f"https://{EVIL}"}}
    more = [{"role": "assistant", "content": "I see"}, {"role": "user", "content": [far]}]
    run.unread_call(rollout, [*first, *more])
    told = f"[image 1: image/png 640x480, {size_text(len(encoded()))}]"
    assert typed("show", "latest.look") == 0
    lines = [line.strip() for line in capfd.readouterr().out.splitlines()]
    assert lines.count(told) == 1, "what was said before is not said again"
    assert [line for line in lines if line.startswith("[image 1: at https://[red]bold?[/red] ␛[31mred")]
    assert lines.count("not read by the recorder: 1 image went to the provider; no token ids, never trained") == 2
    assert typed("show", "latest.look", "-o", "json") == 0
    turns = json.loads(capfd.readouterr().out)["turns"]
    assert [[message["role"] for message in turn["messages"]] for turn in turns] == [["user", "assistant"]] * 2
    assert turns[0]["messages"][0]["images"] == [told]
    for fmt in ("jsonl", "csv", "parquet"):
        assert typed("show", "latest.look", "-o", fmt) == 0


def test_a_request_that_was_not_kept_is_said(run, typed, capfd) -> None:
    rollout = f"{run.run_id}.old.react.0"
    run.state(rollout, "running")
    run.unread_call(rollout, [], request=None, messages=None)
    assert typed("show", "latest.old") == 0
    told = "not read by the recorder: what was asked was not kept; no token ids, never trained"
    assert told in capfd.readouterr().out
