"""Read `openforge.toml` and everything that may override it, and remember where each value came from.

Precedence: flag > environment > target overlay > project file > user file > recipe > default. Strict: a key that
nobody reads or a value of the wrong type is an error that names the file, the line and what was expected. It does not
know what the values mean.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from openforge.config import recipes
from openforge.config.combinations import check_together
from openforge.config.models import Config, ConfigFile, Target
from openforge.errors import ConfigError

FILE_NAME = "openforge.toml"
ENV_PREFIX = "OPENFORGE_"
type Key = tuple[str, ...]


@dataclass(frozen=True)
class Loaded:
    """A valid configuration; `sources` names where each leaf came from, e.g. `{"run.samples": "openforge.toml:12"}`."""

    config: Config
    sources: dict[str, str]
    project_dir: Path
    targets: tuple[str, ...] = ("local",)

    @property
    def store_root(self) -> Path:
        """Where runs are kept, absolute; it may not exist yet."""
        return (self.project_dir / Path(self.config.store.path).expanduser()).resolve()


@dataclass
class Layer:
    """One source of values: nested `data`, and for each key `where` it stands."""

    data: dict[str, Any] = field(default_factory=dict)
    where: dict[Key, str] = field(default_factory=dict)

    def place(self, key: Key) -> str:
        """Where `key`, or the nearest table around it, stands."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.where:
                return self.where[key[:length]]
        inside = [place for known, place in self.where.items() if known[: len(key)] == key]
        return inside[0] if inside else "configuration"

    def put(self, key: Key, value: Any, where: str) -> None:
        table = self.data
        for depth, part in enumerate(key[:-1]):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{where}: {'.'.join(key[: depth + 1])} is a value, not a table")
        table[key[-1]] = value
        self.where[key] = where


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` that holds an openforge.toml; `start` itself when there is none."""
    start = start.absolute()
    return next((folder for folder in (start, *start.parents) if (folder / FILE_NAME).exists()), start)


def user_file(env: Mapping[str, str]) -> Path | None:
    """`$XDG_CONFIG_HOME/openforge/config.toml`, by default under `~/.config`; None without a home."""
    if base := env.get("XDG_CONFIG_HOME"):
        return Path(base) / "openforge" / "config.toml"
    return Path(home) / ".config" / "openforge" / "config.toml" if (home := env.get("HOME")) else None


_BUILT_IN: dict[str, dict[str, Any]] = {
    "local": {},
    "kind": {"kind": "kind"},
    "sim": {"kind": "sim"},
}
"""Targets that are there without a file; a file may say more of them."""
_OF_KIND: dict[str, dict[str, Any]] = {"sim": {"policy": {"engine": "openai"}, "run": {"mode": "record"}}}
"""What a target of this kind cannot do without: no model answers in a simulated cluster."""


def load(
    project_dir: Path,
    target: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Loaded:
    """Merge every layer for `project_dir`. `overrides` are flags: `{"run.samples": "2"}`. Raises ConfigError."""
    env = os.environ if env is None else env
    files = [
        read_file(path, label)
        for path, label in ((user_file(env), None), (project_dir / FILE_NAME, FILE_NAME))
        if path is not None and path.exists()
    ]
    environment, flags = _from_env(env), _from_flags(overrides or {})
    overlays = {name: [_as_overlay(name, table, {})] if table else [] for name, table in _BUILT_IN.items()}
    for layer in files:
        for name, table in layer.data.pop("target", {}).items():
            own = {key[2:]: place for key, place in layer.where.items() if key[:2] == ("target", name)}
            overlays.setdefault(name, []).append(_as_overlay(name, table, own))
    chosen = target or env.get(f"{ENV_PREFIX}TARGET") or "local"
    if chosen not in overlays:
        raise ConfigError(f"there is no target {chosen!r}", hint=_nearest(chosen, overlays, "targets"))
    kind = merge(overlays[chosen])[0].get("target", {}).get("kind", "")
    of_kind = [_as_overlay(chosen, _OF_KIND[kind], {})] if kind in _OF_KIND else []
    layers = [*files, *of_kind, *overlays[chosen], environment, flags]
    merged, where = merge([*_recipe(*merge(layers), project_dir), *layers])
    config = _validated(merged, where)
    sources = {".".join(key): where.get(key, "default") for key, _ in leaves(config.model_dump())}
    return Loaded(config, sources, project_dir, tuple(sorted(overlays)))


def overridden(config: Config, overrides: Mapping[str, Any]) -> Config:
    """`config` with flags above it. Raises ConfigError."""
    return _validated(*merge([Layer(config.model_dump()), _from_flags(overrides)]))


def _validated(merged: dict[str, Any], where: dict[Key, str]) -> Config:
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, Layer(merged, where)) from None
    check_together(config, where)
    return config


def merge(layers: list[Layer]) -> tuple[dict[str, Any], dict[Key, str]]:
    """Leaf by leaf, later layers win; arrays are values and are replaced whole. The layers stay as they were."""
    merged = Layer()
    for layer in layers:
        for key, value in leaves(layer.data):
            merged.put(_split_verl(key), value, layer.place(key))
    return merged.data, merged.where


def _split_verl(key: Key) -> Key:
    """`"actor.lr" = 1` under [trainer.verl] is the same key as `actor.lr = 1`, so that later layers find it."""
    return key if key[:2] != ("trainer", "verl") else (*key[:2], *".".join(key[2:]).split("."))


def leaves(table: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is not itself a table with something in it, with its key."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*prefix, name))
        elif not isinstance(value, Mapping):
            yield (*prefix, name), value


def read_file(path: Path, label: str | None = None) -> Layer:
    """One file, checked on its own, so that an error names its line even when another layer would override it."""
    label = label or str(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{label} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise ConfigError(f"{label}:{line[1] if line else text.count(chr(10)) + 1}: not valid TOML: {error}") from None
    layer = Layer(data, {key: f"{label}:{line}" for key, line in key_lines(text).items()})
    if "version" not in data:
        raise ConfigError(f"{label}:1: `version` is missing", hint="begin the file with `version = 1`")
    _validate(layer)
    return layer


def key_lines(text: str) -> dict[Key, int]:
    """The line of every key and table header of a valid TOML text. TOML itself tells where a statement ends."""
    found: dict[Key, int] = {}
    prefix: Key = ()
    pending, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        start = number if not pending else start
        pending += line + "\n"
        try:
            parsed = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        if pending.lstrip().startswith("["):
            prefix = ()
            while isinstance(parsed, dict) and parsed:
                (name,) = parsed
                prefix, parsed = (*prefix, name), parsed[name]
                found.setdefault(prefix, start)
        else:
            found |= {(*prefix, *key): start for key, _ in leaves(parsed)}
        pending = ""
    return found


def _recipe(merged: dict[str, Any], where: dict[Key, str], project_dir: Path) -> list[Layer]:
    """The layer of the recipe that `merged` asks for, if it asks. Raises ConfigError."""
    name = merged.get("trainer", {}).get("recipe")
    if not name:
        return []
    layer = read_file(recipes.find(name, project_dir, where[("trainer", "recipe")]), f"recipe {name}")
    for refused in (("target",), ("trainer", "recipe")):
        if place := next((place for key, place in layer.where.items() if key[: len(refused)] == refused), None):
            raise ConfigError(
                f"{place}: a recipe cannot set {'.'.join(refused)}", hint="it may set every table but [target.NAME]"
            )
    return [layer]


def _as_overlay(name: str, table: dict[str, Any], where: dict[Key, str]) -> Layer:
    """A `[target.NAME]` table as a layer of the configuration it overrides: its own keys move under `target`."""
    layer = Layer()
    tables = Config.model_fields.keys() - {"target", "version"}
    layer.put(("target", "name"), name, where.get((), f"target {name}"))
    for key, value in leaves(table):
        place = next((where[key[:n]] for n in range(len(key), -1, -1) if key[:n] in where), "configuration")
        layer.put(key if key[0] in tables else ("target", *key), value, f"target {name} ({place})")
    return layer


def _from_env(env: Mapping[str, str]) -> Layer:
    layer = Layer()
    for name, text in sorted(env.items()):
        if name.startswith(ENV_PREFIX) and "__" in name:
            key = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            layer.put(key, _typed(key, text), f"environment {name}")
    _validate(layer)
    return layer


def _from_flags(overrides: Mapping[str, Any]) -> Layer:
    layer = Layer()
    for name, value in overrides.items():
        key = tuple(name.split("."))
        layer.put(key, _typed(key, value) if isinstance(value, str) else value, f"flag {name}")
    _validate(layer)
    return layer


def _validate(layer: Layer) -> None:
    chosen = {name: value for name, value in layer.data.items() if name != "target" or _is_file_shape(value)}
    try:
        ConfigFile.model_validate(chosen)
    except ValidationError as error:
        raise _explain(error, layer) from None


def _is_file_shape(target: object) -> bool:
    """In a file `target` holds tables by name; a flag sets a value of the chosen one, checked when merged."""
    return not isinstance(target, dict) or all(isinstance(table, dict) for table in target.values())


def _typed(key: Key, text: str) -> Any:
    """A flag's or variable's text as the field's type wants it: `2`, `true`, `a,b`; what does not parse stays text."""
    annotation = _annotation(key)
    if annotation is str:
        return text
    if annotation is not None and _is_array(annotation):
        return [part.strip() for part in text.split(",") if part.strip()] if not text.startswith("[") else _toml(text)
    return _toml(text)


def _is_array(annotation: Any) -> bool:
    parts = (annotation, *get_args(annotation))
    return any(get_origin(part) is tuple and get_args(part)[:1] == (str,) for part in parts)


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _annotation(key: Key) -> Any:
    model: Any = Config
    for part in key:
        fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
        if part not in fields:
            return None
        model = fields[part].annotation
    return model


def _explain(error: ValidationError, layer: Layer) -> ConfigError:
    lines = []
    for problem in error.errors():
        key = tuple(str(part) for part in problem["loc"])
        name = ".".join(key)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{layer.place(key)}: {name} is not a known key{_did_you_mean(key)}")
        else:
            expected = problem["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
            expected = re.sub(
                r"valid (tuple|dictionary or instance of \w+)",
                lambda m: "array" if m[1] == "tuple" else "table",
                expected,
            ).replace("a array", "an array")
            lines.append(f"{layer.place(key)}: {name} {expected}, but it is {problem['input']!r}")
    return ConfigError("\n".join(lines), hint="`openforge config schema` prints every key with its type")


def _did_you_mean(key: Key) -> str:
    prefix = key[:2] if key[0] == "target" and len(key) > 2 else ()
    own = [(name,) for name in Target.model_fields] if prefix else []
    known = {".".join((*prefix, *leaf)): leaf for leaf in [*own, *known_keys()]}
    same_name = [name for name, leaf in known.items() if leaf[-1] == key[-1]]
    near = difflib.get_close_matches(".".join(key), known, n=1, cutoff=0.9) or same_name
    near = near or difflib.get_close_matches(".".join(key), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def known_keys() -> list[Key]:
    """Every key that has a default."""
    tables = Config().model_dump(exclude={"target"})
    return (
        [key for key, _ in leaves(tables)]
        + [(name,) for name in tables]
        + [("trainer", "mix"), ("trainer", "verl"), ("target",)]
    )


def _nearest(text: str, known: Mapping[str, object], what: str) -> str:
    near = difflib.get_close_matches(text, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known {what}: {', '.join(sorted(known))}"
