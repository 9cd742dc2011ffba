"""Which numbers of a training stand together in one plot, in the order that a person asks for them.

A name that no chart knows gets one of its own: what another trainer writes is shown as well. Pure; draws nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from openforge.store.training import Curve
from openforge_tui.widgets.plot import Series


class Chart(NamedTuple):
    """`names`: each a name, several with `|` between them of which the first that is there counts, or, with a dot at
    its end, all that begin so."""

    title: str
    names: tuple[str, ...]


CHARTS = (
    Chart("reward, mean of a step", ("train.reward|rollouts.reward",)),
    Chart("success by harness", ("train.success.",)),
    Chart("evaluation: success, 95 % interval", ("eval.success", "eval.success.low", "eval.success.high")),
    Chart("evaluation by harness", ("eval.success.",)),
    Chart("evaluation: pass@k, pass^k", ("eval.pass_at_k", "eval.pass_hat_k")),
    Chart("tokens a rollout", ("rollouts.tokens",)),
    Chart("tokens a second", ("train.tokens_per_s",)),
    Chart("staleness, weight versions", ("train.staleness_max", "train.staleness_mean")),
    Chart("samples a rollout", ("train.samples_per_rollout",)),
    Chart("breaks and rows not used", ("train.breaks", "train.rows_refused", "train.rollouts_unused")),
    Chart("errors of ours, by class", ("train.errors.|rollouts.errors.", "rollouts.retried")),
    Chart("invalid tool calls, and recovered from one", ("train.invalid_calls", "rollouts.recovered")),
    Chart("KL", ("train.kl", "train.kl_to_reference")),
    Chart("entropy", ("train.entropy",)),
    Chart("gradient norm", ("train.grad_norm",)),
    Chart("seconds of a step", ("train.step_s", "train.time_s.")),
    Chart("success by task", ("train.success_task.",)),
)
_BOUNDS = (".low", ".high")
_QUIET = {"train.rollouts", "rollouts.reward", "eval.n", "eval.k"}  # in the list of steps, or no curve


def charts(curves: Mapping[str, Curve]) -> list[tuple[str, list[Series]]]:
    """The title and lines of each chart that has any."""
    left = {name for name in curves if not name.startswith("eval.")} - _QUIET
    found = []
    for chart in CHARTS:
        names = list(dict.fromkeys(name for entry in chart.names for name in _named(entry, curves)))
        left -= set(names)
        if names:
            found.append((chart.title, [_series(_short(name, chart), curves[name]) for name in names]))
    return found + [(name, [_series(name, curves[name])]) for name in sorted(left)]


def _named(entry: str, curves: Mapping[str, Curve]) -> Sequence[str]:
    for name in entry.split("|"):
        if name in curves:
            return [name]
        if name.endswith("."):
            found = [other for other in curves if other.startswith(name) and not other.endswith(_BOUNDS)]
            if found:
                return found
    return []


def _short(name: str, chart: Chart) -> str:
    for entry in "|".join(chart.names).split("|"):
        if entry.endswith(".") and name.startswith(entry):
            return name.removeprefix(entry)
    return name.partition(".")[2].replace("success.", "")


def _series(name: str, curve: Curve) -> Series:
    return Series(name, curve.steps, curve.values)
