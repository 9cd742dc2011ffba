"""A configuration as people and programs read it: rows with their sources, JSON Schema, a first file, a safe copy.

Writes no file itself. Knows the models' shape, not their meaning.
"""

from typing import Any, NamedTuple

from openforge.config.load import Loaded, leaves
from openforge.config.models import Config, ConfigFile
from openforge.redact import Redactor


class Row(NamedTuple):
    """One line of `openforge config show`."""

    key: str
    value: Any
    source: str


def rows(loaded: Loaded) -> list[Row]:
    """Every value with where it came from, in the order of the models; secrets are hidden."""
    values = {".".join(key): value for key, value in leaves(public(loaded.config))}
    return [Row(key, "default" if value is None else value, loaded.sources[key]) for key, value in values.items()]


def public(config: Config) -> dict[str, Any]:
    """The whole configuration as plain values, safe to store with a run: what is named like a secret is hidden."""
    hidden: dict[str, Any] = Redactor().tree(config.model_dump(mode="json"))
    return hidden


def schema() -> dict[str, Any]:
    """JSON Schema of openforge.toml, for editors."""
    document = ConfigFile.model_json_schema()
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**dialect, **document, "title": "openforge.toml", "required": ["version"]}


def first_file() -> str:
    """A short openforge.toml that says what the defaults are and where to go on."""
    config = Config()
    return f"""\
version = 1

# What is shown is the default. `openforge config show` prints every value and where it came from,
# `openforge config schema` every key. OPENFORGE_RUN__SAMPLES=4 or --set run.samples=4 override this file.

[policy]
model = {_toml(config.policy.model)}        # starter, smollm2, a Hugging Face folder, or a provider's model name
# To record another provider instead of sampling here, set these three and `mode = "record"` below in [run]:
# engine = "openai"
# base_url = "https://api.example.com/v1"
# api_key_env = "EXAMPLE_API_KEY"

[policy.sampling]
temperature = {config.policy.sampling.temperature}
max_tokens = {config.policy.sampling.max_tokens}

[run]
tasks = {_toml(config.run.tasks)}         # a set, a task such as "desk/count-lines", or a folder
harnesses = {_toml(config.run.harnesses)}    # `openforge harness list`
samples = {config.run.samples}              # rollouts for each task and harness
concurrency = {config.run.concurrency}
time_limit_s = {config.run.time_limit_s:g}
# mode = "record"          # with engine = "openai"

[sandbox]
memory = {_toml(config.sandbox.memory)}
# egress_allow = ["packages.example:443"]

# `openforge train --recipe NAME` takes a whole experiment from trainer/recipes; what stands in this file wins over it.
# [trainer]
# recipe = "tiny-cpu"
# steps = {config.trainer.steps}

# A target overrides any value above: openforge run --target quick
# [target.quick.run]
# samples = 1
# time_limit_s = 60
"""


def _toml(value: str | tuple[str, ...]) -> str:
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, tuple) else f'"{value}"'
