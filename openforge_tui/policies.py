"""From the name of a policy to its folder. Looks, never makes; loads neither torch nor an engine."""

from pathlib import Path
from typing import Any

from openforge.cache import policies_dir
from openforge.errors import UsageError
from openforge.harness import HarnessManifest, load_harness
from openforge.task import Task, load_tasks
from trainer import smollm2
from trainer.starter.recipe import Recipe, recipe_hash

ORIGIN = "openforge.json"  # in a policy's folder: what it was made from
BUILTIN = {
    "starter": "a tiny model that knows the desk tasks by heart; made here in minutes",
    "smollm2": "SmolLM2-135M-Instruct; real language, no tool calls worth the name",
}


def starter_lessons(recipe: Recipe) -> tuple[list[Task], list[HarnessManifest]]:
    """The tasks and harnesses that the starter learns from."""
    return load_tasks(recipe.task_refs), [load_harness(name) for name in recipe.harnesses]


def starter_description(recipe: Recipe) -> dict[str, Any]:
    """All that makes this starter; its hash names the folder."""
    return recipe.describe(*starter_lessons(recipe))


def starter_place(recipe: Recipe) -> Path:
    """Where the starter of this recipe is or will be."""
    return policies_dir() / f"starter-{recipe_hash(starter_description(recipe))}"


def place(name: str) -> Path:
    """Where the folder of a policy is or will be: a built-in name's in the cache, anything else is a path, or the name
    of one that was made here."""
    if name == "starter":
        return starter_place(Recipe())
    if name == "smollm2":
        return policies_dir() / smollm2.FOLDER
    folder = Path(name).expanduser().resolve()
    return policies_dir() / name if name in made() and not folder.is_dir() else folder


def made() -> dict[str, Path]:
    """Policies that were trained here and kept by name: name to folder."""
    return {path.parent.name: path.parent for path in sorted(policies_dir().glob(f"*/{ORIGIN}"))}


def new_place(name: str) -> Path:
    """Where a trained policy will be: a plain name's in the cache, anything else is a path. UsageError when it is
    there already."""
    plain = Path(name).name == name and not name.startswith((".", "~"))
    folder = policies_dir() / name if plain else Path(name).expanduser().resolve()
    if name in BUILTIN or folder.exists():
        raise UsageError(f"there is a policy {name!r} already ({place(name)})", hint="choose another name")
    return folder


def find(name: str) -> str | None:
    """The folder of a policy that is there, else None."""
    folder = place(name)
    return str(folder) if (folder / "config.json").is_file() else None


def resolve_policy(name: str) -> Path:
    """The model folder of a policy. UsageError with what to type when it is not there."""
    found = find(name)
    if found is not None:
        return Path(found)
    if name in BUILTIN:
        raise UsageError(f"the policy {name!r} is not made yet", hint=f"openforge policy make {name}")
    known = ", ".join(BUILTIN)
    raise UsageError(
        f"{name!r} is neither a policy ({known}) nor a folder with a config.json", hint="openforge policy list"
    )
