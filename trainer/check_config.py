"""Does veRL take what we render? Composes veRL's own configuration with the overrides and runs veRL's own checks on it.

`python -m trainer.check_config KEY=VALUE …` prints the whole configuration as YAML, or says what is wrong and ends with
2. No GPU, no Ray, no weights: of the model's folder only config.json is read. What veRL would find out on the GPUs only
(parallel sizes that do not fit the machine) is recomputed here.
"""

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache
from typing import Any, cast, get_origin, get_type_hints

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from openforge.errors import ConfigError, OpenForgeError

type Table = dict[str, Any]

_GROUPS = ("model_engine",)


def check(overrides: Sequence[str]) -> DictConfig:
    """The resolved configuration; nothing is printed. Raises ConfigError that names the key."""
    try:
        check_keys(overrides)
        config = _compose(overrides)
        OmegaConf.resolve(config)
        with redirect_stdout(sys.stderr):  # veRL says there that all went well
            _verl_checks(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"veRL's configuration cannot be composed: {error}") from error
    _fits_machine(config)
    return config


def check_keys(overrides: Sequence[str]) -> None:
    """Only that keys and types are veRL's, which takes a second. Raises ConfigError with every mistake.

    An override that begins with `++` is somebody's own key of [trainer.verl]: where veRL has no such key it is a
    mistake, unless the place is one where veRL takes any key.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        stock = _stock(tuple(text for text in overrides if text.partition("=")[0] in _GROUPS))
        mistakes = [mistake for override in parsed for mistake in _mistakes(override, stock)]
    except HydraException as error:
        raise ConfigError(f"veRL's configuration cannot be composed: {error}") from error
    if mistakes:
        hint = '`openforge train --dry-run` prints every key of veRL; write "+key" for one that veRL does not list'
        raise ConfigError("\n".join(mistakes), hint=hint)


def _compose(overrides: Sequence[str]) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


@cache
def _stock(groups: tuple[str, ...]) -> Table:
    """veRL's own files, with references as they stand."""
    return cast(Table, OmegaConf.to_container(_compose(groups)))


def _mistakes(override: Override, stock: Table) -> Iterator[str]:
    key = str(override.key_or_group)
    if key in _GROUPS or key.startswith("openforge.") or override.is_delete():
        return
    own = override.is_force_add()
    name = f"trainer.verl.{key}" if own else key
    if own and not _is_known(key, stock):
        near = _nearest(key, stock)
        yield f"{name} is not a key of veRL{f'; did you mean {near}?' if near else ''}"
    elif (told := _wrong_type(key, override.value(), stock)) is not None:
        yield f"{name} {told}, but it is {override.value()!r}"


def _is_known(key: str, stock: Table) -> bool:
    """Whether veRL has `key`: as a value, as a field of the class that reads its table, or in a table of any keys."""
    found, takes_any = stock, False
    for part in key.split("."):
        if takes_any and part not in found:
            return True
        hint = _fields(found).get(part)
        if part not in found:
            return hint is not None
        inside = found[part]
        if not isinstance(inside, dict) or not inside:
            return True
        found, takes_any = inside, get_origin(hint) is dict
    return True


def _fields(table: Table) -> dict[str, Any]:
    """Fields with their types of the class that reads `table`."""
    if not table.get("_target_"):
        return {}
    kind = get_class(table["_target_"])
    return {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__dataclass_fields__}


def _wrong_type(key: str, value: Any, stock: Table) -> str | None:
    """What the class that reads `key` says to the value; without one, what kind of value stands there in veRL."""
    table, _, name = key.rpartition(".")
    reader = _table(stock, table)
    if value is None or _is_reference(value) or reader is None:
        return None
    stands = reader.get(name)
    kinds = {bool: bool, int: float, float: float, str: str}  # a whole number may stand where any number is meant
    hint = _fields(reader).get(name) or (None if _is_reference(stands) else kinds.get(type(stands)))
    if hint is None:
        return None
    try:
        TypeAdapter(hint, config={"strict": True, "arbitrary_types_allowed": True}).validate_json(json.dumps(value))
    except (PydanticUserError, TypeError):
        return None  # a class of veRL's own: its table is checked key by key
    except ValidationError as error:
        return error.errors()[0]["msg"].replace("Input should be", "should be")
    return None


def _table(stock: Table, key: str) -> Table | None:
    found: Any = stock
    for part in key.split(".") if key else []:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and ("${" in value or value == "???")


def _nearest(key: str, stock: Table) -> str | None:
    known = list(_keys(stock))
    last = key.rpartition(".")[2]
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    found = (
        difflib.get_close_matches(key, known, n=1, cutoff=0.9)
        or difflib.get_close_matches(key, same_name, n=1, cutoff=0)
        or difflib.get_close_matches(key, known, n=1)
    )
    return f"trainer.verl.{found[0]}" if found else None


def _keys(table: Table, prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield f"{prefix}{name}"


def _verl_checks(config: DictConfig) -> None:
    """veRL's `validate_config`, its dataclasses with their own checks, and the trainer's constructor."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    from trainer.trainers import TRAINERS

    model = OmegaConf.create(OmegaConf.to_container(config.actor_rollout_ref.model))
    model.load_tokenizer = False
    tables = {
        "actor_rollout_ref.model": model,
        "actor_rollout_ref.rollout": config.actor_rollout_ref.rollout,
        "actor_rollout_ref.rollout.checkpoint_engine": config.actor_rollout_ref.rollout.checkpoint_engine,
        "algorithm": config.algorithm,
    }
    reference, critic = need_reference_policy(config), need_critic(config)
    if reference:
        tables["actor_rollout_ref.ref"] = _as_actor(config.actor_rollout_ref.ref)
    if critic:
        tables["critic"] = config.critic
    name = "the configuration"
    try:
        validate_config(config=config, use_reference_policy=reference, use_critic=critic)
        for name in tables:
            omega_conf_to_dataclass(tables[name])
        name = "trainer.v1"
        TRAINERS[config.trainer.v1.trainer_mode](config=config)
    except Exception as error:  # whatever veRL raises: assertions, ValueError, Hydra's and its own
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        raise ConfigError(f"veRL refuses {name}: {str(first) or type(first).__name__}") from error


def _as_actor(reference: DictConfig) -> DictConfig:
    """The reference model's table under the names of an actor's, as veRL's worker renames it."""
    table = cast(Table, OmegaConf.to_container(reference))
    return OmegaConf.create(
        {name.replace("log_prob_", "" if "dynamic" in name else "ppo_"): value for name, value in table.items()}
    )


def _fits_machine(config: DictConfig) -> None:
    """Parallel sizes divide the GPUs they are for."""
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    apart = config.trainer.v1.trainer_mode == "separate_async"
    sampling = rollout.nnodes * rollout.n_gpus_per_node if apart else gpus
    sizes = {
        "a replica of the rollout policy": (rollout.tensor_model_parallel_size * rollout.data_parallel_size, sampling)
    }
    if actor.strategy == "megatron":
        split = actor.megatron
        expert_tensor = split.expert_tensor_parallel_size or split.tensor_model_parallel_size
        layers = split.pipeline_model_parallel_size
        sizes |= {
            "tensor × pipeline × context": (
                split.tensor_model_parallel_size * layers * split.context_parallel_size,
                gpus,
            ),
            "expert × expert tensor × pipeline": (split.expert_model_parallel_size * expert_tensor * layers, gpus),
        }
    else:
        sizes["ulysses"] = (actor.fsdp_config.ulysses_sequence_parallel_size, gpus)
    for what, (size, available) in sizes.items():
        if available % size:
            raise ConfigError(
                f"{what} takes {size} GPUs, which does not divide the {available} there are for it",
                hint="change trainer.gpus or the parallel sizes in [trainer.verl]",
            )


def main() -> int:
    """Checks the arguments."""
    try:
        config = check(sys.argv[1:])
    except OpenForgeError as error:
        print(error.summary, *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        return error.exit_code
    print(OmegaConf.to_yaml(config), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
