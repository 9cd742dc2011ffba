"""The questions made ready, each over a made-up run whose answer is known."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import SyntheticRun

from openforge.store.connect import query
from openforge.store.saved import SAVED
from openforge.store.sql import SafeSql

COLUMNS = {
    "harnesses": "harness rollouts graded success reward errors calls sampled",
    "lost": "task harness rollouts reward best_reward rollout_id",
    "breaks": "harness break_reason calls share call_id",
    "slow": "rollout_id call_id state duration_s ttft_s prompt_len sampled tokens_per_s",
    "lengths": "rollout_id attempt call_id turn prompt_len sampled ttft_s duration_s",
    "garbled": "rollout_id call_id what times example",
    "surprisal": "turn harness calls tokens surprisal",
    "reference": "run_id weight_version step tokens logprob probability kl_to_reference kl_of_update",
    "recovery": "harness rollouts_with_errors errors tool_worked_later succeeded recovered success_without_errors",
    "errors": "error_class attempts example rollout_id",
    "surprising": "rollout_id call_id position text logprob",
    "tools": "tool calls rollouts",
    "egress": "host port decision rule times rollout_id",
}

type Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def run(make_run) -> SyntheticRun:
    made: SyntheticRun = make_run()
    return made


@pytest.fixture
def ask(store_root: Path) -> Ask:
    return lambda name: query(store_root, SAVED[name].sql)


@pytest.mark.contract
@pytest.mark.parametrize("name", SAVED)
def test_each_runs_in_the_jail_and_has_its_columns(run: SyntheticRun, name: str) -> None:
    run.rollout()
    table = SafeSql(run.store_root).query(SAVED[name].sql)
    assert " ".join(table.column_names) == COLUMNS[name]


@pytest.mark.parametrize("name", SAVED)
def test_an_empty_store_has_no_rows_and_is_no_error(store_root: Path, ask: Ask, name: str) -> None:
    (store_root / "runs").mkdir(parents=True, exist_ok=True)
    assert ask(name) == []


def test_success_is_of_the_graded(run: SyntheticRun, ask: Ask) -> None:
    for sample, reward in enumerate((1.0, 0.5, 0.0)):
        run.rollout(sample=sample, reward=reward)
    run.state(f"{run.run_id}.t.react.3", "error", error_class="image")
    (row,) = ask("harnesses")
    assert (row["rollouts"], row["graded"], row["errors"], row["reward"]) == (4, 3, 1, 0.5)
    assert row["success"] == pytest.approx(2 / 3)


def test_reward_that_was_lost_comes_first_with_its_worst_rollout(run: SyntheticRun, ask: Ask) -> None:
    run.rollout("easy", "react", reward=1.0)
    run.rollout("hard", "react", reward=0.0)
    run.rollout("hard", "pi", reward=1.0)
    worst = run.rollout("mixed", "pi", 1, reward=0.0)
    run.rollout("mixed", "pi", 0, reward=1.0)
    rows = ask("lost")
    assert [(row["task"], row["harness"]) for row in rows[:2]] == [("hard", "react"), ("mixed", "pi")]
    assert rows[0]["best_reward"] == 1.0
    assert rows[1]["rollout_id"] == worst


def test_turns_and_lengths_of_calls(run: SyntheticRun, ask: Ask) -> None:
    run.rollout(turns=2, added=50, sampled=30, ttft_s=0.25)
    assert [(row["turn"], row["prompt_len"], row["sampled"], row["ttft_s"]) for row in ask("lengths")] == [
        (1, 50, 30, 0.25),
        (2, 130, 30, 0.25),
    ]


def test_surprisal_is_the_mean_over_tokens_not_over_calls(run: SyntheticRun, ask: Ask) -> None:
    for sample, logprobs in enumerate(([-1.0] * 30, [-0.1] * 10)):
        run.rollout(sample=sample, turns=1, sampled=len(logprobs), logprobs=logprobs)
    run.rollout(sample=2, turns=1, logprobs=[-9.0] * 30, auxiliary=True)
    (row,) = ask("surprisal")
    assert (row["turn"], row["calls"], row["tokens"]) == (1, 2, 40)
    assert row["surprisal"] == pytest.approx((30 * 1.0 + 10 * 0.1) / 40)


def messages(text: str, **more: object) -> list[dict[str, object]]:
    return [
        {"position": 0, "role": "user", "text": "hello"},
        {"position": 1, "role": "assistant", "text": text, **more},
    ]


def test_answers_that_look_broken_are_found_and_others_are_not(run: SyntheticRun, ask: Ask) -> None:
    fine = list(range(100))
    rollout = run.rollout(turns=1, completion_ids=fine, logprobs=[-0.1] * 100)
    calls = {}
    for name, ids, text in (
        ("characters that are none", fine, "o\ufffdk \ufffd"),
        ("one token again and again", [*range(50), *[7] * 12], "ok"),
        ("phrases again and again", [*range(10)] * 10, "ok"),
        ("", [*range(50), *[7] * 9], "plain \N{CJK UNIFIED IDEOGRAPH-4E2D}"),
    ):
        call = run.call(rollout, completion_ids=ids, logprobs=[-0.1] * len(ids), messages=messages(text))
        calls[call] = name
    found = {row["call_id"]: row for row in ask("garbled")}
    assert {call: row["what"] for call, row in found.items()} == {call: name for call, name in calls.items() if name}
    times = {row["what"]: row["times"] for row in found.values()}
    assert times["characters that are none"] == 2
    assert times["one token again and again"] == 12
    assert times["phrases again and again"] == (100 - 7) - 10  # stretches of 8 there are, less those that differ


def test_broken_characters_in_a_tools_arguments_count(run: SyntheticRun, ask: Ask) -> None:
    rollout = run.rollout(turns=1)
    broken = [{"id": "x", "name": "shell", "arguments": '{"command": "ls \ufffd"}'}]
    call = run.call(rollout, messages=messages("ok", tool_calls=broken))
    assert [(row["call_id"], row["what"]) for row in ask("garbled")] == [(call, "characters that are none")]


def test_versions_stand_beside_what_the_trainer_told_of_the_reference(run: SyntheticRun, ask: Ask) -> None:
    first = run.rollout(sample=0, turns=1, sampled=10, logprobs=[-1.0] * 10)
    run.rollout(sample=1, turns=1, sampled=10, logprobs=[-0.5] * 10, weight_version_min="w2", weight_version_max="w2")
    run.orchestrator.append("train.step", step=1, incarnation=0, weight_version="w2", rollouts=[first], samples=1)
    run.orchestrator.append("metric", step=1, name="train.kl_to_reference", value=0.25)
    run.orchestrator.append("metric", step=1, name="train.kl", value=0.125)
    before, after = ask("reference")
    assert (before["weight_version"], before["step"], before["kl_to_reference"]) == ("w1", None, None)
    assert before["probability"] == pytest.approx(math.exp(-1.0))
    assert (after["weight_version"], after["step"], after["tokens"]) == ("w2", 1, 10)
    assert (after["logprob"], after["kl_to_reference"], after["kl_of_update"]) == (-0.5, 0.25, 0.125)


def tool_says(*texts: str) -> list[dict[str, object]]:
    return [{"position": n, "role": "tool", "text": text, "tool_call_id": f"x{n}"} for n, text in enumerate(texts)]


def test_recovery_counts_rollouts_in_which_a_tool_failed(run: SyntheticRun, ask: Ask) -> None:
    for sample, (reward, said) in enumerate(
        (
            (1.0, ("bash: foo: command not found", "fine")),  # went on, succeeded
            (0.0, ("fine", "Process exited with code 2")),  # did not go on
            (0.0, ("oops\n[exit 1]", "fine")),  # went on, did not succeed
            (1.0, ("ERROR disk full\nINFO page sent", "Process exited with code 0")),  # a log, no failure
            (0.0, ("fine",)),
        )
    ):
        run.rollout(sample=sample, reward=reward, turns=1, messages=tool_says(*said))
    (row,) = ask("recovery")
    assert (row["rollouts_with_errors"], row["errors"], row["tool_worked_later"], row["succeeded"]) == (3, 3, 2, 1)
    assert row["recovered"] == pytest.approx(1 / 3)
    assert row["success_without_errors"] == pytest.approx(1 / 2)
