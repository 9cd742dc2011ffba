from dataclasses import replace
from pathlib import Path

import pytest

from openforge.errors import UsageError
from openforge_tui import policies
from trainer.starter.recipe import Recipe, recipe_hash


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", list(policies.BUILTIN))
def test_a_policy_that_is_not_made_says_how_to_make_it(name: str) -> None:
    assert policies.find(name) is None
    with pytest.raises(UsageError) as error:
        policies.resolve_policy(name)
    assert error.value.hint == f"openforge policy make {name}"


@pytest.mark.parametrize("name", list(policies.BUILTIN))
def test_a_policy_that_is_made_is_found_in_the_cache(name: str, cache: Path) -> None:
    folder = make_folder(policies.place(name))
    assert folder.is_relative_to(cache)
    assert policies.resolve_policy(name) == folder


def test_any_model_folder_is_a_policy(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my model")
    assert policies.resolve_policy(str(folder)) == folder
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match="neither a policy"):
        policies.resolve_policy(str(folder))


def test_a_policy_that_was_trained_here_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_folder(policies.new_place("taught"))
    (folder / policies.ORIGIN).write_text("{}")
    assert policies.resolve_policy("taught") == folder
    assert policies.made() == {"taught": folder}
    here = make_folder(tmp_path / "taught")
    assert policies.resolve_policy("taught") == here, "a folder of that name here is nearer"


def test_a_new_policy_takes_no_place_that_is_taken(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert policies.new_place("./taught") == tmp_path / "taught"
    assert policies.new_place("taught") == cache / "policies" / "taught"
    make_folder(tmp_path / "taught")
    make_folder(cache / "policies" / "other")
    for name in ("./taught", str(tmp_path / "taught"), "other", "starter"):
        with pytest.raises(UsageError, match="already"):
            policies.new_place(name)


def test_the_starter_has_another_name_when_anything_of_it_changes() -> None:
    recipe = Recipe()
    described = policies.starter_description(recipe)
    tasks, harnesses = policies.starter_lessons(recipe)
    assert recipe_hash(described) == recipe_hash(recipe.describe(tasks[::-1], harnesses[::-1]))
    changed = [
        replace(recipe, seed=1),
        replace(recipe, shape=replace(recipe.shape, window=96)),
        replace(recipe, sft=replace(recipe.sft, steps=7)),
        replace(recipe, sft=replace(recipe.sft, optimizer="adamw")),
        replace(recipe, harnesses=("react",)),
    ]
    hashes = {recipe_hash(policies.starter_description(other)) for other in changed}
    assert len(hashes | {recipe_hash(described)}) == 6
    assert recipe_hash(recipe.describe(tasks[1:], harnesses)) != recipe_hash(described)


def test_a_setting_that_came_later_renames_no_starter_while_it_is_at_its_default() -> None:
    settings = policies.starter_description(Recipe())["recipe"]["sft"]
    assert list(settings) == ["steps", "batch_rows", "micro_rows", "lr", "warmup_steps", "max_length", "threads"]
