"""`openforge sft` as a person types it; one model is really taught."""

import json
from pathlib import Path

import pytest
import synthetic

from openforge_tui import policies
from openforge_tui.vocabulary import same_vocabularies
from tests.openforge_tui.test_sft import know_vocabulary, write_model
from tests.trainer.conftest import write_toy_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_model(tmp_path / "model"))


def test_a_dry_run_accounts_for_every_rollout_and_makes_nothing(run, typed, model: str, tmp_path: Path, capfd) -> None:
    know_vocabulary(run.store_root, Path(model))
    assert typed("sft", "--policy", model, "--out", "taught", "--dry-run", "-o", "json") == 0
    rows = {row["outcome"]: (row["rollouts"], row["rows"]) for row in json.loads(capfd.readouterr().out)}
    assert rows == {
        "taken": (1, 1),
        "ended as error": (1, 0),
        "reward below 1": (1, 1),
        "no exact row: bad_logprob": (0, 1),
        "all": (3, 3),
    }
    assert not (tmp_path / "cache").exists()


@pytest.mark.contract
def test_a_persons_sql_chooses(run, typed, model: str, capfd) -> None:
    know_vocabulary(run.store_root, Path(model))
    options = ("--policy", model, "--dry-run", "-o", "json", "--min-reward", "0")
    assert typed("sft", *options, "--sql", "SELECT rollout_id FROM rollouts WHERE harness = 'pi'") == 0
    assert typed("sft", "all", *options, "--where", "harness = 'react'") == 0
    assert capfd.readouterr().out.count('"outcome": "taken",\n    "rollouts": 1') == 2


def test_what_is_wrong_is_told_before_anything_is_taught(run, typed, model: str, capfd) -> None:
    def told(*words: str) -> str:
        assert typed("sft", *words) == 2
        return str(capfd.readouterr().err)

    assert "--out NAME" in told("--policy", model)
    assert "no run is called 'rzzz'" in told("rzzz", "--policy", model, "--dry-run")
    assert "neither a policy" in told("--policy", "nowhere", "--dry-run")
    assert "it has another tokenizer" in told("--policy", model, "--dry-run")
    assert "nothing is left to teach: reward below 9" in told("--policy", model, "--min-reward", "9", "--dry-run")
    for taken in (model, "starter"):
        assert "there is a policy" in told("--policy", model, "--out", taken)


@pytest.mark.contract
def test_verl_teaches_what_was_taken_and_the_result_is_a_policy_by_name(
    run, typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    pytest.importorskip("verl", reason="the train set is not installed")
    monkeypatch.setattr(synthetic, "VOCAB", 250)
    model = write_toy_model(tmp_path / "model", monkeypatch)
    know_vocabulary(run.store_root, Path(model))
    names = [run.rollout("u", sample=sample) for sample in range(3)]
    words = ("--where", "task = 'u'", "--per-task", "2", "--epochs", "2", "--batch", "1", "--threads", "1")
    assert typed("sft", "--policy", str(model), "--out", "taught", *words) == 0
    told = capfd.readouterr()
    assert "teaching 4/4: loss" in told.err
    assert "next: openforge run --policy taught" in told.err

    folder = policies.resolve_policy("taught")
    origin = json.loads((folder / "openforge.json").read_text())
    assert folder == tmp_path / "cache" / "policies" / "taught"
    assert len(origin["rollouts"]) == 2
    assert set(origin["rollouts"]) < set(names)
    assert (origin["choice"]["runs"], origin["rows"], len(origin["loss"])) == ([run.run_id], 2, 4)
    assert (origin["settings"]["optimizer"], origin["settings"]["steps"]) == ("adamw", 4)
    assert same_vocabularies(run.store_root, {"v1"}, folder) == {"v1"}
    assert (folder / "model.safetensors").stat().st_size > 0
    assert [path.name for path in folder.parent.iterdir()] == ["taught"]
    assert typed("sft", "--policy", str(model), "--out", "taught", *words) == 2
    assert "there is a policy 'taught' already" in capfd.readouterr().err
    assert typed("policy", "list", "-o", "name") == 0
    assert capfd.readouterr().out.split() == ["starter", "smollm2", "taught"]
