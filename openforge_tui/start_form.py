"""What a run or a training can be started with: its fields, the command that they make, and whether it would be taken.

Fields are data. What is typed is checked by the functions that the command itself uses; nothing is started here.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openforge.config import Config, Loaded
from openforge.errors import OpenForgeError, UsageError

type Kind = Literal["run", "train"]
type Load = Callable[[str | None, Mapping[str, str]], Loaded]
"""The configuration of a target with these values above it. Raises ConfigError."""
TARGET = "target"


@dataclass(frozen=True)
class Field:
    """One line of a form. `key`: what it sets in the configuration; `check` raises what the command would raise."""

    key: str
    label: str
    option: str
    about: str
    check: Callable[[Config, Path], object] = lambda config, project: None
    choices: Callable[[Loaded], Sequence[str]] | None = None


@dataclass(frozen=True)
class Checked:
    """What became of the values. `errors` by key; a key of "" is of the whole. `count`: rollouts, when all is well."""

    errors: dict[str, str] = field(default_factory=dict)
    count: int = 0
    told: str = ""


def _tasks(config: Config, project: Path) -> None:
    from cluster.launch import check_tasks
    from openforge.task import load_tasks

    check_tasks(config, load_tasks(config.run.tasks))


def _harnesses(config: Config, project: Path) -> None:
    from openforge.harness import harness_roots, load_harness

    for name in config.run.harnesses:
        load_harness(name, harness_roots(project))


def _policy(config: Config, project: Path) -> None:
    from openforge_tui.policies import resolve_policy

    if config.policy.engine == "vllm" and not config.policy.base_url:
        resolve_policy(config.policy.model)


def _recipes(loaded: Loaded) -> list[str]:
    from openforge.config.recipes import names

    mine = loaded.config.trainer.recipe
    return list(dict.fromkeys([*([mine] if mine else []), *names()]))


_TASKS = Field("run.tasks", "tasks", "--tasks", "sets, tasks or folders, with commas", _tasks)
_HARNESSES = Field("run.harnesses", "harnesses", "--harness", "names or folders, with commas", _harnesses)
_POLICY = Field("policy.model", "policy", "--policy", "a name, a model folder, a provider's model", _policy)
_TARGET = Field(TARGET, "target", "--target", "where rollouts run", choices=lambda loaded: loaded.targets)
FORMS: dict[Kind, tuple[Field, ...]] = {
    "run": (
        _TARGET,
        _TASKS,
        _HARNESSES,
        Field("run.samples", "samples", "--samples", "rollouts for each task and harness"),
        _POLICY,
    ),
    "train": (
        _TARGET,
        Field("trainer.recipe", "recipe", "--recipe", "a whole experiment; empty for none", choices=_recipes),
        _TASKS,
        _HARNESSES,
        _POLICY,
        Field("trainer.steps", "steps", "--steps", "after each one rollouts get new weights"),
    ),
}


def values_of(loaded: Loaded, fields: Sequence[Field]) -> dict[str, str]:
    """What the configuration says of each field, as it would be typed."""
    values = {}
    for one in fields:
        value: object = loaded.config.target.name if one.key == TARGET else loaded.config
        for part in one.key.split(".") if one.key != TARGET else ():
            value = getattr(value, part)
        values[one.key] = ",".join(value) if isinstance(value, tuple) else str(value)
    return values


def command_of(kind: Kind, values: Mapping[str, str]) -> list[str]:
    """The words after `openforge`; a field that is empty is left out."""
    words: list[str] = [kind]
    for one in FORMS[kind]:
        if text := values.get(one.key, "").strip():
            words += [one.option, text]
    return words


def shown(argv: Sequence[str]) -> str:
    return shlex.join(("openforge", *argv))


def check(kind: Kind, values: Mapping[str, str], load: Load) -> Checked:
    """Whether the command would take these values, and how many rollouts it would make of them."""
    typed = {key: text.strip() for key, text in values.items() if key != TARGET and text.strip()}
    errors: dict[str, str] = {}
    try:
        loaded = load(values.get(TARGET), {})
    except OpenForgeError as error:
        return Checked({TARGET: _told(error)})
    fields = [one for one in FORMS[kind] if one.key in typed]
    good: dict[str, str] = {}
    for one in fields:
        try:
            loaded = load(values.get(TARGET), {**good, one.key: typed[one.key]})
            one.check(loaded.config, loaded.project_dir)
            good[one.key] = typed[one.key]
        except OpenForgeError as error:
            errors[one.key] = _told(error)
    if errors:
        return Checked(errors)
    try:
        return _count(kind, loaded)
    except OpenForgeError as error:
        return Checked({"": _told(error)})


def _count(kind: Kind, loaded: Loaded) -> Checked:
    from cluster.launch import make_specs

    config = loaded.config
    if kind == "train":
        _refuse_training(config)
    once = config.model_copy(update={"run": config.run.model_copy(update={"samples": 1})})
    pairs = len(make_specs(once, loaded.project_dir))
    if kind == "run":
        count = pairs * config.run.samples
        return Checked(count=count, told=_plural(count, "rollout"))
    trainer = config.trainer
    count = trainer.steps * trainer.groups * trainer.group_size
    told = f"{_plural(trainer.steps, 'step')} of {trainer.groups} x {trainer.group_size}: {_plural(count, 'rollout')}"
    return Checked(count=count, told=f"{told}, evaluations apart")


def refuse_simulated(config: Config) -> None:
    """UsageError for what has no meaning where nothing runs."""
    if config.target.kind == "sim":
        raise UsageError(
            "nothing runs in the pods of a simulated cluster: `openforge run` is all that can be tried there",
            hint="leave --target out, or name another one",
        )


def _refuse_training(config: Config) -> None:
    refuse_simulated(config)
    if config.target.kind == "kubernetes":
        from cluster.remote_place import check_policy

        check_policy(config.target.name, "", live=True)


def _told(error: OpenForgeError) -> str:
    return error.summary + (f" ({error.hint})" if error.hint else "")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
