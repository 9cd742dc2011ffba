"""Evaluations of checkpoints: which weights, which rollouts, and where the numbers go.

A checkpoint is a policy by name or folder, or one step of a training run. Each is evaluated in a run of its own, whose
journal keeps the numbers. Does not know the command line, nor how an estimate is made.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.attempt import RolloutSpec
from cluster.launch import Engine, Say, make_specs, orchestrate
from cluster.orchestrator import OnEvent
from openforge.config.models import Config
from openforge.errors import UsageError
from openforge.ids import RunId, resolve_run
from openforge.store.snapshot import known_runs
from openforge_tui.policies import resolve_policy
from trainer.checkpoints import checkpoint_step, checkpoints, weights_of
from trainer.evaluation import FIRST_SEED, Graded, Report, evaluate, metrics

_OF_A_RUN = re.compile(r"(\w+)@(\d+)")
_LAST_SEED = (1 << 31) - 1


@dataclass(frozen=True)
class Checkpoint:
    """Weights to evaluate: `model` as the configuration calls them, their folder (None: a provider has them), and the
    training run and step that made them; none and 0 for those that no run here trained."""

    name: str
    model: str
    model_dir: Path | None = None
    step: int = 0
    run_id: str | None = None


def find_checkpoint(store_root: Path, text: str) -> Checkpoint:
    """The weights a person meant by a policy's name, a folder, or RUN@STEP of a training run. UsageError."""
    match = _OF_A_RUN.fullmatch(text)
    if match is None or Path(text).expanduser().exists():
        return Checkpoint(text, text, resolve_policy(text))
    run_id, step = _training_run(store_root, match[1]), int(match[2])
    folders = saved_steps(store_root, run_id)
    if step not in folders:
        steps = ", ".join(map(str, folders))
        raise UsageError(
            f"run {run_id} has no checkpoint of step {step}" + (f", but of {steps}" if steps else ", nor any other"),
            hint=f"--policy {run_id}@{max(folders)}" if folders else "openforge runs",
        )
    return Checkpoint(f"{run_id}@{step}", str(folders[step]), folders[step], step, run_id)


def saved_steps(store_root: Path, run_id: str) -> dict[int, Path]:
    """The folders in Hugging Face's layout that a training run has saved, by step, in order; whole ones only."""
    found = checkpoints(store_root / "runs" / run_id / "trainer")
    return {checkpoint_step(checkpoint): weights_of(checkpoint) for checkpoint in found}


def _training_run(store_root: Path, text: str) -> str:
    """`latest` is the newest run that has trained, since an evaluation is a run too."""
    known = known_runs(store_root)
    trained = [name for name in known if (store_root / "runs" / name / "trainer").is_dir()]
    return resolve_run(text, trained if text == "latest" and trained else known)


def evaluation_config(config: Config, checkpoint: Checkpoint) -> Config:
    """`config` as an evaluation of `checkpoint` runs it: tasks, harnesses and samples of [trainer] eval_…, start files
    that training never uses. UsageError for a seed that leaves them."""
    run, trainer = config.run, config.trainer
    seed = FIRST_SEED + run.seed
    if run.seed < 0 or seed + trainer.eval_samples > _LAST_SEED:
        most = _LAST_SEED - FIRST_SEED - trainer.eval_samples
        raise UsageError(f"seed {run.seed}: an evaluation takes 0 to {most}", hint="--seed 0")
    changed = {
        "tasks": trainer.eval_tasks or run.tasks,
        "harnesses": trainer.eval_harnesses or run.harnesses,
        "samples": trainer.eval_samples,
        "seed": seed,
    }
    policy = config.policy.model_copy(update={"model": checkpoint.model})
    return config.model_copy(update={"run": run.model_copy(update=changed), "policy": policy})


def evaluation_specs(config: Config, checkpoint: Checkpoint, project: Path) -> list[RolloutSpec]:
    """The rollouts of an evaluation; `config` comes from `evaluation_config`. UsageError."""
    return [replace(spec, purpose="eval", step=checkpoint.step) for spec in make_specs(config, project)]


async def run_evaluation(
    config: Config,
    store_root: Path,
    checkpoint: Checkpoint,
    specs: Sequence[RolloutSpec],
    engine: Engine,
    run_id: RunId,
    *,
    ks: Sequence[int] | None = None,
    say: Say = lambda text: None,
    on_event: OnEvent = lambda rollout: None,
) -> Report:
    """Run `specs` with `engine` as run `run_id` and keep what came of them as its metrics. InfraError, UsageError."""
    async with orchestrate(
        config, store_root, engine, model_dir=checkpoint.model_dir, run_id=run_id, say=say, on_event=on_event
    ) as orchestrator:
        rollouts = await orchestrator.run_all(specs)
        report = evaluate(
            (Graded(one.spec.task.ref, one.spec.harness.name, one.reward) for one in rollouts), ks, leave_out=True
        )
        for name, value in metrics(report).items():
            orchestrator.journal.append("metric", step=checkpoint.step, name=name, value=value)
    return report
