"""Where recipes stand: TOML files in openforge.toml's form that name every value of one way to train.

`trainer/recipes/<name>.toml` of this checkout, or any path. Finds them; what is in them is read by load.py.
"""

import difflib
from pathlib import Path

from openforge.errors import ConfigError

BUILTIN_ROOT = Path(__file__).resolve().parent.parent.parent / "trainer" / "recipes"


def names() -> list[str]:
    """The recipes that ship with the project, sorted."""
    return sorted(path.stem for path in BUILTIN_ROOT.glob("*.toml"))


def find(recipe: str, project_dir: Path, place: str) -> Path:
    """The file of a built-in name or a path (with a `/` or `.toml`; relative to the project). Raises ConfigError.

    `place` says where the recipe was asked for, such as `openforge.toml:3`.
    """
    is_path = "/" in recipe or recipe.endswith(".toml")
    path = project_dir / Path(recipe).expanduser() if is_path else BUILTIN_ROOT / f"{recipe}.toml"
    if path.is_file():
        return path
    if is_path:
        raise ConfigError(f"{place}: there is no recipe file {path}", hint=f"known recipes: {', '.join(names())}")
    near = difflib.get_close_matches(recipe, names(), n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{place}: there is no recipe {recipe!r}", hint=f"{guess}known recipes: {', '.join(names())}")
