import json
import threading
import time


def test_what_has_ended_is_not_waited_for(run, typed, capfd) -> None:
    assert typed("wait", "latest.t.react.0", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out) == {"id": f"{run.run_id}.t.react.0", "state": "done"}


def test_a_run_is_waited_for_until_its_end(run, typed, capfd) -> None:
    ending = threading.Thread(target=lambda: (time.sleep(0.5), run.end("done")))
    ending.start()
    assert typed("wait", "latest", "-o", "json") == 0
    ending.join()
    assert json.loads(capfd.readouterr().out)["state"] == "done"


def test_the_time_limit_is_an_exit_code_of_its_own(run, typed, capfd) -> None:
    assert typed("wait", "latest", "--timeout", "0") == 4
    assert "is running after 0 s" in capfd.readouterr().err


def test_another_end_than_the_one_waited_for(run, typed, capfd) -> None:
    assert typed("wait", "latest.t.codex.0", "--for", "done") == 5
    assert "ended as error, not done" in capfd.readouterr().err


def test_a_state_that_is_none(run, typed, capfd) -> None:
    assert typed("wait", "--for", "happy") == 2
