"""`openforge train` as a person types it, up to the trainer's start (that it trains: test_train_real.py)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from synthetic import SyntheticRun

from openforge_tui import train_set
from openforge_tui.cli.train import COLUMNS, _Shown

Typed = Callable[..., int]


@pytest.fixture
def model(tmp_path: Path) -> str:
    """What rendering and veRL's checks read of a model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3", "architectures": ["M"], "num_hidden_layers": 2}')
    return str(folder)


@pytest.fixture
def installed() -> None:
    if missing := train_set.missing():
        pytest.skip(f"{', '.join(missing)} not installed: ./just train-set")


@pytest.mark.contract
@pytest.mark.usefixtures("installed")
def test_a_dry_run_prints_all_that_verl_would_be_told_and_starts_nothing(
    tmp_path: Path, typed: Typed, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--recipe",
        "tiny-cpu",
        "--policy",
        model,
        "--steps",
        "3",
        "--set",
        "trainer.verl.trainer.balance_batch=false",
    )
    assert typed("train", "--dry-run", *words) == 0
    config: Any = OmegaConf.create(capfd.readouterr().out)
    assert config.trainer.total_training_steps == 3
    assert config.trainer.balance_batch is False
    assert config.actor_rollout_ref.model.path == model
    assert len(config.actor_rollout_ref) > 3  # veRL's own keys too
    assert not (tmp_path / ".openforge").exists()


@pytest.mark.contract
@pytest.mark.usefixtures("installed")
def test_a_misspelt_key_is_named_with_the_one_that_was_meant(
    typed: Typed, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("--recipe", "tiny-cpu", "--policy", model, "--set", "trainer.verl.trainer.balanse_batch=false")
    assert typed("train", "--dry-run", *words) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert "trainer.verl.trainer.balanse_batch is not a key of veRL" in told.err
    assert "did you mean trainer.verl.trainer.balance_batch?" in told.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--resume", "r9"), "no run is called 'r9'"),
        (("--resume", "latest"), "r0000000aaa is not a training run"),
        (("--resume", "latest", "--harness", "pi", "--set", "trainer.lr=1"), "run.harnesses, trainer.lr cannot change"),
        (("--policy", "nowhere"), "'nowhere' is neither a policy"),
        (("--mode", "fast"), "trainer.mode"),
    ],
)
def test_what_cannot_be_is_exit_code_2_and_starts_nothing(
    run: SyntheticRun, typed: Typed, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert typed("train", *words) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert says in told.err
    assert [path.name for path in (run.store_root / "runs").iterdir()] == [run.run_id]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[list[dict[str, Any]], str]]:
    """The rows and the narration that events become."""

    def show(*events: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
        rows: list[dict[str, Any]] = []
        with _Shown(4, rows) as shown:
            for event in events:
                shown.event(json.loads(json.dumps(event)))
        return rows, capsys.readouterr().err

    return show


def step(number: int, **metrics: float) -> dict[str, Any]:
    told = {"train.reward": 0.25, "train.success.react": 0.5, "train.success.pi": 0.125, "train.rollouts": 8.0}
    return {"event": "step", "step": number, "metrics": {**told, "train.step_s": 9.04, **metrics}}


def test_a_step_is_a_line_and_a_row(shown: Callable[..., tuple[list[dict[str, Any]], str]]) -> None:
    rows, said = shown({"event": "ready", "step": 0, "steps": 4}, step(1, **{"train.staleness_max": 1.0}))
    assert "trainer: ready, 4 steps to go" in said
    assert "steps 1/4: reward 0.25 (react 0.50, pi 0.12), 8 rollouts in 9 s" in said
    assert tuple(rows[0]) == COLUMNS
    assert (rows[0]["step"], rows[0]["rollouts"], rows[0]["staleness"]) == (1, 8, 1)


def test_steps_that_are_made_again_are_shown_once(shown: Callable[..., tuple[list[dict[str, Any]], str]]) -> None:
    ready = {"event": "ready", "step": 0, "steps": 4}
    rows, said = shown(ready, step(1), step(2), {**ready, "step": 1}, step(2, **{"train.reward": 0.75}), step(3))
    assert [(row["step"], row["reward"]) for row in rows] == [(1, 0.25), (2, 0.75), (3, 0.25)]
    assert "trainer: ready, 3 steps to go" in said
    assert "steps 2/3: reward 0.25" in said


def test_an_evaluation_is_a_line_with_its_interval(shown: Callable[..., tuple[list[dict[str, Any]], str]]) -> None:
    metrics = {"eval.success": 0.5, "eval.success.low": 0.4, "eval.success.high": 0.6, "eval.n": 96.0}
    _, said = shown({"event": "evaluation", "step": 0, "metrics": metrics})
    assert "evaluation at step 0: success 0.50 [0.40, 0.60] of 96 rollouts" in said
    _, said = shown({"event": "evaluation", "step": 0, "metrics": {"eval.success": 0.0, "eval.n": 0.0}})
    assert "success 0.00 of 0 rollouts" in said
