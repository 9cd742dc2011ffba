"""What a command that does everything needs first: the train set, the harnesses, the policy; made when they lack."""

from typing import TYPE_CHECKING

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from pathlib import Path

    from openforge.config import Config


def prepare(config: "Config") -> "Path | None":
    """Install and make what this run lacks; returns the policy's folder (None: it is served elsewhere)."""
    from cluster.install import install
    from openforge.harness import harness_roots, load_harness
    from openforge_tui import train_set
    from openforge_tui.cli.policy import make_missing
    from openforge_tui.policies import resolve_policy

    if config.policy.base_url:
        output.say(f"policy: {config.policy.base_url}")
    elif train_set.missing():
        train_set.install(output.say)
    for name in config.run.harnesses:
        install(load_harness(name, harness_roots(settings.current().project)), output.say)
    if config.policy.base_url:
        return None
    make_missing(config.policy.model)
    return resolve_policy(config.policy.model)
