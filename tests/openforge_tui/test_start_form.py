"""What the form's values become: a command, and the verdict that the command itself would give."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from openforge.config import Loaded, load
from openforge_tui.start_form import FORMS, Checked, Kind, check, command_of, shown, values_of


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """A model folder, as far as anybody looks before it is loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def checked(project: Path, kind: Kind = "run", **values: str) -> Checked:
    def loading(target: str | None, overrides: Mapping[str, str]) -> Loaded:
        return load(project, target, overrides, env={})

    given = values_of(load(project, env={}), FORMS[kind])
    names = {field.label: field.key for field in FORMS[kind]}
    return check(kind, given | {names[label]: text for label, text in values.items()}, loading)


def test_a_form_begins_with_what_the_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "openforge.toml").write_text('version = 1\n[run]\nharnesses = ["react", "pi"]\nsamples = 4\n')
    values = values_of(load(tmp_path, env={}), FORMS["run"])
    assert values["run.harnesses"] == "react,pi"
    assert (
        shown(command_of("run", values))
        == "openforge run --target local --tasks desk --harness react,pi --samples 4 --policy starter"
    )


def test_an_empty_field_is_left_to_the_configuration() -> None:
    values = {"target": "local", "trainer.recipe": "tiny-cpu", "run.tasks": " ", "trainer.steps": "3"}
    assert command_of("train", values) == ["train", "--target", "local", "--recipe", "tiny-cpu", "--steps", "3"]


def test_rollouts_are_counted(tmp_path: Path, policy: str) -> None:
    one = checked(tmp_path, policy=policy, tasks="desk/count-lines", harnesses="react,pi", samples="8")
    assert (one.errors, one.count, one.told) == ({}, 16, "16 rollouts")
    many = checked(tmp_path, policy=policy, tasks="desk/count-lines", samples="100000")
    assert many.count == 100_000


@pytest.mark.parametrize(
    ("values", "key", "said"),
    [
        ({"tasks": "desk,nope"}, "run.tasks", "'nope'"),
        ({"harnesses": "reac"}, "run.harnesses", "did you mean react?"),
        ({"samples": "0"}, "run.samples", "greater than 0"),
        ({"samples": "many"}, "run.samples", "many"),
        ({"policy": "no-such-model"}, "policy.model", "neither a policy"),
        ({"target": "moon"}, "target", "there is no target 'moon'"),
    ],
)
def test_each_error_stands_at_its_field(
    tmp_path: Path, policy: str, values: dict[str, str], key: str, said: str
) -> None:
    found = checked(tmp_path, **{"policy": policy, **values})
    assert list(found.errors) == [key]
    assert said in found.errors[key]
    assert found.count == 0


def test_several_errors_are_told_at_once(tmp_path: Path, policy: str) -> None:
    found = checked(tmp_path, policy=policy, tasks="nope", samples="x")
    assert set(found.errors) == {"run.tasks", "run.samples"}


def test_what_only_the_whole_shows_is_told_of_the_whole(tmp_path: Path, policy: str) -> None:
    (tmp_path / "openforge.toml").write_text('version = 1\n[sandbox]\nruntime = "rocket"\n')
    assert "there is no runtime 'rocket'" in checked(tmp_path, policy=policy).errors[""]


def test_training_is_counted_and_refused_where_nothing_runs(tmp_path: Path, policy: str) -> None:
    steps = checked(tmp_path, "train", policy=policy, steps="2")
    assert (steps.errors, steps.count) == ({}, 2 * 12 * 8)
    assert steps.told == "2 steps of 12 x 8: 192 rollouts, evaluations apart"
    assert "simulated cluster" in checked(tmp_path, "train", policy=policy, target="sim").errors[""]
    assert "there is no recipe" in checked(tmp_path, "train", policy=policy, recipe="tiny").errors["trainer.recipe"]


def test_training_on_a_cluster_elsewhere_is_refused_as_the_command_does(tmp_path: Path, policy: str) -> None:
    (tmp_path / "openforge.toml").write_text('version = 1\n[target.far]\nkind = "kubernetes"\n')
    assert "policy of a trainer here" in checked(tmp_path, "train", policy=policy, target="far").errors[""]
