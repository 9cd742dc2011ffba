from pathlib import Path

import pytest

from openforge.config import load, recipes, render
from openforge.errors import ConfigError

OWN = "version = 1\n[trainer]\nsteps = 3\ngroups = 4\nlr = 1e-5\n[run]\nsamples = 3\n[trainer.verl.a]\nb = 1\nc = 1\n"


@pytest.fixture
def project(tmp_path: Path):
    def write(text: str, recipe: str = OWN) -> Path:
        (tmp_path / "own.toml").write_text(recipe)
        (tmp_path / "openforge.toml").write_text(f"version = 1\n{text}\n")
        return tmp_path

    return write


def refusal(folder: Path, env: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, env=env or {})
    return caught.value


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_of_the_project_loads(name: str, tmp_path: Path) -> None:
    loaded = load(tmp_path, overrides={"trainer.recipe": name}, env={})
    told = {source.partition(":")[0] for source in loaded.sources.values()}
    assert told == {"default", "flag trainer.recipe", f"recipe {name}"}


def test_a_recipe_lies_above_the_defaults_and_beneath_every_file(project, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "openforge").mkdir(parents=True)
    (home / "openforge" / "config.toml").write_text("version = 1\n[trainer]\ngroups = 5\n")
    folder = project("[trainer]\nrecipe = 'own.toml'\nsteps = 7")
    loaded = load(folder, env={"XDG_CONFIG_HOME": str(home)})
    trainer = loaded.config.trainer
    assert (trainer.steps, trainer.groups, trainer.lr, trainer.group_size) == (7, 5, 1e-5, 8)
    assert loaded.config.run.samples == 3
    assert loaded.sources["trainer.steps"] == "openforge.toml:4"
    assert loaded.sources["trainer.groups"].endswith("config.toml:3")
    assert loaded.sources["trainer.lr"] == "recipe own.toml:5"
    assert loaded.sources["trainer.group_size"] == "default"
    assert render.Row("run.samples", 3, "recipe own.toml:7") in render.rows(loaded)


def test_flag_variable_and_target_may_ask_for_one(project) -> None:
    folder = project("[target.x.trainer]\nrecipe = 'own.toml'")
    assert load(folder, env={}).config.trainer.lr == 4e-4
    for loaded in (
        load(folder, overrides={"trainer.recipe": "own.toml"}, env={}),
        load(folder, env={"OPENFORGE_TRAINER__RECIPE": "./own.toml"}),
        load(folder, target="x", env={}),
    ):
        assert loaded.config.trainer.lr == 1e-5


def test_an_empty_name_takes_the_recipe_back(project) -> None:
    folder = project("[trainer]\nrecipe = 'own.toml'")
    assert load(folder, overrides={"trainer.recipe": ""}, env={}).config.trainer.lr == 4e-4


def test_an_unknown_recipe_is_named_with_those_there_are(project) -> None:
    told = refusal(project("[trainer]\nrecipe = 'tiny-cup'"))
    assert told.summary == "openforge.toml:3: there is no recipe 'tiny-cup'"
    assert "did you mean 'tiny-cpu'?" in told.hint
    assert "smollm2-cpu" in told.hint
    assert "there is no recipe file" in refusal(project("[trainer]\nrecipe = 'other.toml'")).summary
    assert refusal(project(""), {"OPENFORGE_TRAINER__RECIPE": "nope"}).summary.startswith("environment OPENFORGE_")


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("version = 1\n[trainer]\nstep = 3", "recipe own.toml:3: trainer.step is not a known key"),
        ("version = 1\n[trainer]\nsteps = 'x'", "recipe own.toml:3: trainer.steps should be a valid integer"),
        ("[trainer]\nsteps = 1", "recipe own.toml:1: `version` is missing"),
        ("version = 1\n[target.x]\ngpu = 1", "recipe own.toml:2: a recipe cannot set target"),
        ("version = 1\n[trainer]\nrecipe = 'x'", "recipe own.toml:3: a recipe cannot set trainer.recipe"),
    ],
)
def test_a_mistake_in_a_recipe_names_its_line(project, recipe: str, told: str) -> None:
    assert told in refusal(project("[trainer]\nrecipe = 'own.toml'", recipe)).summary


@pytest.mark.parametrize("text", ["'a.b' = 2", "a.b = 2", "[trainer.verl.a]\nb = 2", "a = {b = 2}"])
def test_keys_of_verl_are_the_same_dotted_or_nested(project, text: str) -> None:
    table = "" if text.startswith("[") else "[trainer.verl]\n"
    loaded = load(project(f"[trainer]\nrecipe = 'own.toml'\n{table}{text}"), env={})
    assert loaded.config.trainer.verl == {"a": {"b": 2, "c": 1}}
    assert loaded.sources["trainer.verl.a.b"].startswith("openforge.toml:")
    assert loaded.sources["trainer.verl.a.c"].startswith("recipe own.toml:")
