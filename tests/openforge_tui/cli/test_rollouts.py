import json

import pytest


def ids(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["rollout_id"].partition(".")[2] for line in capfd.readouterr().out.splitlines()]


def test_the_rollouts_of_the_latest_run(run, typed, capfd) -> None:
    assert typed("rollouts", "-o", "jsonl") == 0
    assert ids(capfd) == ["t.codex.0", "t.pi.1", "t.react.0"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--failed",), ["t.codex.0", "t.pi.1"]),
        (("--harness", "pi"), ["t.pi.1"]),
        (("--state", "error"), ["t.codex.0"]),
        (("--task", "x' OR true --"), []),
    ],
)
def test_they_can_be_narrowed(run, typed, capfd, words: tuple[str, ...], found: list[str]) -> None:
    assert typed("rollouts", "latest", *words, "-o", "jsonl") == 0
    assert ids(capfd) == found


def test_a_task_is_found_with_its_set_and_without(run, typed, capfd) -> None:
    run.orchestrator.append(
        "rollout.state",
        rollout_id=f"{run.run_id}.fix.react.9",
        attempt=0,
        state="queued",
        task="desk/fix",
        harness="react",
    )
    for name in ("fix", "desk/fix"):
        assert typed("rollouts", "--task", name, "-o", "jsonl") == 0
        assert ids(capfd) == ["fix.react.9"]


def test_a_table_obeys_no_text(run, typed, capfd) -> None:
    assert typed("rollouts") == 0
    told = capfd.readouterr()
    assert "\x1b" not in told.out
    assert "[red]bold?[/red]" in told.out
    assert "openforge show" in told.err


def test_no_such_run(typed, capfd) -> None:
    assert typed("rollouts", "latest") == 2
    assert "no runs yet" in capfd.readouterr().err


def test_nothing_that_matches_names_what_there_is(run, typed, capfd) -> None:
    assert typed("rollouts", "--state", "bogus") == 0
    told = capfd.readouterr().err
    assert "nothing matches; states are done, error; tasks are t; harnesses are codex, pi, react" in told
