import json


def test_runs_are_listed_with_what_became_of_them(run, typed, capfd) -> None:
    assert typed("runs", "-o", "json") == 0
    (row,) = json.loads(capfd.readouterr().out)
    told = {
        name: row[name] for name in ("run_id", "state", "policy", "harnesses", "rollouts", "done", "error", "reward")
    }
    assert told == {
        "run_id": "r0000000aaa",
        "state": "running",
        "policy": "starter",
        "harnesses": "react",
        "rollouts": 3,
        "done": 2,
        "error": 1,
        "reward": 0.5,
    }


def test_no_runs_is_no_error(typed, capfd) -> None:
    assert typed("runs", "-o", "json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out) == []
    assert "openforge demo" in told.err


def test_a_run_whose_process_died_says_so(run, typed, capfd) -> None:
    run.close()
    assert typed("runs", "-o", "jsonl") == 0
    assert json.loads(capfd.readouterr().out)["state"] == "interrupted"
