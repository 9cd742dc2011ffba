"""How a trainer saves, ends and goes on."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the train set is not installed")

sys.path.append(str(Path(__file__).parent))

from toy_step import Step
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from openforge.errors import InfraError
from trainer.checkpoints import MARKER, saved_version


@pytest.fixture
def saving(step: Callable[..., Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Step, Path]:
    """A trainer whose base writes a checkpoint of one file, and syncs no weights."""
    made = step()
    made.trainer.config.trainer = {"default_local_dir": str(tmp_path)}
    made.trainer.total_training_steps = 9
    folder = tmp_path / "global_step_5"

    def save(_: Any) -> None:
        (folder / "actor").mkdir(parents=True, exist_ok=True)
        (folder / "actor" / "model.pt").write_bytes(b"weights")

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "on_step_end", lambda _: None)
    return made, folder


def test_a_checkpoint_is_marked_once_all_of_it_is_written(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()
    assert not (folder / MARKER).exists()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert json.loads((folder / MARKER).read_bytes())["step"] == 5
    assert sorted(path.name for path in folder.iterdir()) == ["actor", MARKER]
    assert [event["event"] for event in made.events] == ["saved", "step"]


def test_a_trainer_killed_before_its_step_was_told_makes_the_step_again(
    saving: tuple[Step, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()

    def gone(method: str, path: str, body: Any) -> dict[str, Any]:
        if path == "/metrics":
            raise InfraError("the orchestrator does not answer")
        return {"rollouts": []}

    monkeypatch.setattr(made.trainer, "ask", gone)
    with pytest.raises(InfraError):
        made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert not (folder / MARKER).exists()


def test_a_resumed_training_names_its_weights_alike_in_answers_steps_and_checkpoints(
    saving: tuple[Step, Path],
) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert saved_version(str(folder)) == "5.1"
    made.trainer.config.openforge.update({"incarnation": 2, "from_step": 4, "from_version": "4.1"})
    made.trainer._save_checkpoint()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    [_, told] = [body for _, path, body in made.told if path == "/steps"]
    assert told["weight_version"] == saved_version(str(folder)) == "5.2"


def test_what_is_no_checkpoint_of_ours_has_no_name_of_ours(tmp_path: Path) -> None:
    assert (saved_version(None), saved_version(str(tmp_path))) == ("", "")


def test_a_checkpoint_that_was_not_finished_has_no_mark(
    saving: tuple[Step, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = saving

    def fail(_: Any) -> None:
        folder.mkdir()
        raise OSError("no space left on device")

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", fail)
    with pytest.raises(OSError, match="no space"):
        made.trainer._save_checkpoint()
    assert list(folder.iterdir()) == []
    assert made.events == []


def test_asked_to_stop_it_saves_and_ends_with_the_step_under_way(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer.on_step_end()
    assert not folder.exists()
    made.trainer.stop_asked = True
    made.trainer.on_step_end()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert (folder / MARKER).is_file()
    assert made.trainer.total_training_steps == 5
    assert [event["event"] for event in made.events] == ["stopping", "saved", "step"]


def test_asked_to_stop_a_step_that_was_saved_is_not_saved_again(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()
    (folder / "actor" / "model.pt").unlink()
    made.trainer.stop_asked = True
    made.trainer.on_step_end()
    assert [event["event"] for event in made.events] == ["stopping"]
    assert list((folder / "actor").iterdir()) == []


def test_asked_to_stop_in_its_last_step_it_ends_as_it_would(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer.total_training_steps, made.trainer.stop_asked = 5, True
    made.trainer.on_step_end()
    assert made.events == []
    assert not folder.exists()
