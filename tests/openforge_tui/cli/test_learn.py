"""What `openforge learn` says at its end, from a made-up run (that something is learned: docs/learning.md)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import SyntheticRun

from openforge.config.models import Config, Run
from openforge.ids import RunId, rollout_id
from openforge_tui.cli import settings
from openforge_tui.cli.learn import _report
from openforge_tui.train import Training

Report = Callable[..., tuple[int, str, str]]


@pytest.fixture
def learned(tmp_path: Path) -> SyntheticRun:
    (tmp_path / "store").mkdir()
    return SyntheticRun(tmp_path / "store")


@pytest.fixture
def report(learned: SyntheticRun, capsys: pytest.CaptureFixture[str]) -> Report:
    """Exit code, stdout and stderr of the report, as a table or in another format."""
    config = Config(run=Run(harnesses=("react", "pi")))
    root = learned.store_root
    training = Training(config, root, root, RunId(learned.run_id), root)

    def reported(fmt: str = "table") -> tuple[int, str, str]:
        learned.end()
        settings.reset()
        settings.change(output=fmt)
        code = _report(training, 83.4)
        settings.reset()
        told = capsys.readouterr()
        return code, told.out, told.err

    return reported


def tell(run: SyntheticRun, step: int, **metrics: float) -> None:
    for name, value in metrics.items():
        run.orchestrator.append("metric", step=step, name=name.replace("__", "."), value=value, incarnation=0)


def evaluated(run: SyntheticRun, step: int, success: float) -> None:
    tell(run, step, eval__success=success, eval__n=96.0)
    tell(run, step, eval__success__low=success - 0.1, eval__success__high=success + 0.05)


def rollout(run: SyntheticRun, task: str, sample: int, step: int, seed: int, reward: float, purpose: str) -> str:
    name = rollout_id(run.run_id, task, "react", sample)
    run.state(name, "queued", purpose=purpose, step=step, seed=seed)
    run.state(name, "running")
    run.orchestrator.append("grade", rollout_id=name, attempt=0, reward=reward, details={})
    run.state(name, "done")
    return name


def test_it_ends_with_before_and_after_and_draws_the_curve(learned: SyntheticRun, report: Report) -> None:
    learned.orchestrator.append("train.start", from_step=0, incarnation=0)
    evaluated(learned, 0, 0.25)
    for step in (1, 2):
        tell(learned, step, train__reward=0.5, train__success__react=0.5, train__success__pi=0.4)
    evaluated(learned, 2, 0.9)
    code, out, said = report()
    assert code == 0
    assert out.splitlines()[-1] == "learn: 0.25 -> 0.90 (96, [0.80, 0.95]) in 83 s"
    for part in ("success by training step", "react", "pi", "evaluation", "●"):
        assert part in said
    assert f"next: openforge show, with one of the rollouts above; openforge eval --policy {learned.run_id}@2" in said


def test_it_shows_one_rollout_a_task_that_failed_before_and_succeeds_now(learned: SyntheticRun, report: Report) -> None:
    learned.orchestrator.append("train.start", from_step=0, incarnation=0)
    evaluated(learned, 0, 0.25)
    evaluated(learned, 2, 0.9)
    before = [rollout(learned, "one", seed, 0, seed, 0.0, "eval") for seed in (0, 1)]
    after = [rollout(learned, "one", 2 + seed, 2, seed, 1.0, "eval") for seed in (0, 1)]
    rollout(learned, "was-good", 0, 0, 0, 1.0, "eval")
    rollout(learned, "was-good", 1, 2, 0, 1.0, "eval")
    rollout(learned, "still-bad", 0, 0, 0, 0.0, "eval")
    rollout(learned, "still-bad", 1, 2, 0, 0.0, "eval")
    rollout(learned, "other-files", 0, 0, 0, 0.0, "eval")
    rollout(learned, "other-files", 1, 2, 1, 1.0, "eval")
    rollout(learned, "trained", 0, 0, 0, 0.0, "train")
    rollout(learned, "trained", 1, 2, 0, 1.0, "train")
    told = json.loads(report("json")[1])
    assert (told["before"], told["after"], told["n"], told["seconds"]) == (0.25, 0.9, 96, 83)
    assert told["changed"] == [{"task": "one", "harness": "react", "before": before[0], "after": after[0]}]


@pytest.mark.parametrize("steps", [(), (0,)])
def test_without_an_evaluation_before_and_after_there_is_nothing_to_compare(
    learned: SyntheticRun, report: Report, steps: tuple[int, ...]
) -> None:
    learned.orchestrator.append("train.start", from_step=0, incarnation=0)
    for number in steps:
        evaluated(learned, number, 0.25)
    code, out, said = report()
    assert (code, out) == (3, "")
    assert "no evaluations before and after to compare" in said


def test_the_numbers_of_steps_that_were_made_again_are_the_later_ones(learned: SyntheticRun, report: Report) -> None:
    learned.orchestrator.append("train.start", from_step=0, incarnation=0)
    evaluated(learned, 0, 0.25)
    evaluated(learned, 2, 0.3)
    learned.orchestrator.append("train.start", from_step=1, incarnation=1)
    low, high = 0.8, 0.95
    for name, value in {
        "eval.success": 0.9,
        "eval.n": 96.0,
        "eval.success.low": low,
        "eval.success.high": high,
    }.items():
        learned.orchestrator.append("metric", step=2, name=name, value=value, incarnation=1)
    assert report()[1].splitlines()[-1].startswith("learn: 0.25 -> 0.90 ")
