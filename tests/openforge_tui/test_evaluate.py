"""Which weights and which rollouts an evaluation takes (against a policy: cli/test_eval.py)."""

from pathlib import Path

import pytest

from openforge.config.models import Config, Run, Trainer
from openforge.errors import UsageError
from openforge_tui.evaluate import Checkpoint, evaluation_config, evaluation_specs, find_checkpoint, saved_steps
from trainer.checkpoints import MARKER


def save(store_root: Path, run_id: str, step: int, *names: str) -> Path:
    """What a trainer leaves of a step; by default all of it."""
    folder = store_root / "runs" / run_id / "trainer" / f"global_step_{step}" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    for name in names or ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    if not names:
        (folder.parents[1] / MARKER).write_text("{}")
    return folder


def test_a_step_of_a_training_run_is_its_folder(store_root: Path) -> None:
    folder = save(store_root, "r1", 8)
    assert find_checkpoint(store_root, "r1@8") == Checkpoint("r1@8", str(folder), folder, 8, "r1")


def test_latest_is_the_newest_run_that_trained_and_a_prefix_will_do(store_root: Path) -> None:
    save(store_root, "r1abc", 4)
    save(store_root, "r2abc", 4)
    (store_root / "runs" / "r3abc").mkdir()  # an evaluation of it
    assert find_checkpoint(store_root, "latest@4").name == "r2abc@4"
    assert find_checkpoint(store_root, "r1@4").name == "r1abc@4"


def test_a_step_that_was_not_saved_says_which_were(store_root: Path) -> None:
    save(store_root, "r1", 12)
    save(store_root, "r1", 4)
    with pytest.raises(UsageError, match="no checkpoint of step 5, but of 4, 12") as error:
        find_checkpoint(store_root, "r1@5")
    assert error.value.hint == "--policy r1@12"


def test_a_run_that_saved_nothing_says_so(store_root: Path) -> None:
    (store_root / "runs" / "r1").mkdir()
    for name in ("r1@1", "latest@1"):
        with pytest.raises(UsageError, match="run r1 has no checkpoint of step 1, nor any other"):
            find_checkpoint(store_root, name)
    with pytest.raises(UsageError, match="no run is called 'r2'"):
        find_checkpoint(store_root, "r2@1")


def test_a_checkpoint_that_was_cut_off_while_it_was_saved_is_none(store_root: Path) -> None:
    save(store_root, "r1", 4, "config.json")
    save(store_root, "r1", 8, "config.json", "model.safetensors")  # all of the weights, but not of the rest
    assert saved_steps(store_root, "r1") == {}


def test_a_folder_is_a_checkpoint_whatever_its_name(
    store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r1@8").mkdir()
    (tmp_path / "r1@8" / "config.json").write_text("{}")
    assert find_checkpoint(store_root, "r1@8") == Checkpoint("r1@8", "r1@8", tmp_path / "r1@8", 0)
    with pytest.raises(UsageError, match="neither a policy"):
        find_checkpoint(store_root, "no-such")


def test_start_files_are_those_that_training_never_sees(tmp_path: Path) -> None:
    config = Config(run=Run(tasks=("desk/count-lines",), seed=7), trainer=Trainer(eval_samples=3))
    chosen = Checkpoint("r1@8", "folder", None, 8)
    specs = evaluation_specs(evaluation_config(config, chosen), chosen, tmp_path)
    assert [(spec.sample, spec.seed) for spec in specs] == [(0, 1_000_007), (1, 1_000_008), (2, 1_000_009)]
    assert {(spec.purpose, spec.step) for spec in specs} == {("eval", 8)}


@pytest.mark.parametrize("seed", [-1, 2_147_483_647 - 1_000_000])
def test_a_seed_that_leaves_their_range_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed {seed}: an evaluation takes 0 to"):
        evaluation_config(Config(run=Run(seed=seed)), Checkpoint("p", "p"))


def test_tasks_and_harnesses_are_the_evaluations_own_else_the_runs() -> None:
    run = Run(tasks=("a",), harnesses=("react",), samples=99)
    plain = evaluation_config(Config(run=run), Checkpoint("p", "some folder"))
    assert (plain.run.tasks, plain.run.harnesses, plain.run.samples) == (("a",), ("react",), 8)
    assert plain.policy.model == "some folder"
    own = Trainer(eval_tasks=("b",), eval_harnesses=("pi",), eval_samples=2)
    chosen = evaluation_config(Config(run=run, trainer=own), Checkpoint("p", "p"))
    assert (chosen.run.tasks, chosen.run.harnesses, chosen.run.samples) == (("b",), ("pi",), 2)
