import json
import threading
from pathlib import Path


def test_a_run_tells_what_happened(run, typed, capfd) -> None:
    assert typed("logs") == 0
    lines = capfd.readouterr().out.splitlines()
    assert any(line.endswith("t.react.0 queued") for line in lines)
    assert any("t.pi.1 egress host=example.com" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_training_tells_its_starts_and_steps(run, typed, capfd) -> None:
    run.orchestrator.append("train.start", from_step=0, incarnation=0, pid=1)
    run.orchestrator.append("train.step", step=1, incarnation=0, weight_version="1", rollouts=["a", "b"], samples=3)
    assert typed("logs") == 0
    told = [line.partition(" ")[2] for line in capfd.readouterr().out.splitlines() if " train." in line]
    assert told == [
        f"{run.run_id} train.start from_step=0 incarnation=0 pid=1",
        f"{run.run_id} train.step step=1 incarnation=0 weight_version=1 rollouts=2 samples=3",
    ]


def test_as_records(run, typed, capfd) -> None:
    assert typed("logs", "latest", "-o", "jsonl") == 0
    kinds = {json.loads(line)["kind"] for line in capfd.readouterr().out.splitlines()}
    assert {"run.start", "rollout.state", "grade", "egress"} <= kinds


def test_a_rollout_shows_what_its_harness_printed(run, typed, capfd) -> None:
    logs = run.run_dir / "logs"
    logs.mkdir()
    (logs / f"{run.run_id}.t.pi.1.0.log").write_bytes(b"one\n\x1b[31mtwo \xff\nno end")
    (logs / "recorder.log").write_text("listening\n")
    assert typed("logs", "latest.t.pi") == 0
    assert capfd.readouterr().out == "one\n␛[31mtwo �\nno end\n"
    assert typed("logs", "--recorder") == 0
    assert capfd.readouterr().out == "listening\n"


def test_following_ends_with_the_run_and_misses_nothing(run, typed, capfd) -> None:
    threading.Timer(0.7, run.end).start()
    assert typed("logs", "-f") == 0
    assert capfd.readouterr().out.splitlines()[-1].endswith("run.end state=done")


def test_no_log_is_told(run, typed, capfd, tmp_path: Path) -> None:
    assert typed("logs", "latest.t.pi") == 2
    assert typed("logs", "--recorder") == 2
    assert "there is no" in capfd.readouterr().err


def test_an_empty_log_says_which(run, typed, capfd) -> None:
    logs = run.run_dir / "logs"
    logs.mkdir()
    (logs / "recorder.log").touch()
    assert typed("logs", "--recorder") == 0
    assert f"empty log: {logs / 'recorder.log'}" in capfd.readouterr().err
