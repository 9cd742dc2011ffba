"""Does training inside one harness help inside others? One against three harnesses, at toy scale, in a table.

Three arms: `before`, the starter untrained; `one`, trained inside react; `many`, trained inside react, pi and codex in
equal parts with as many rollouts in all, so a third of them in each. Every arm and seed is evaluated inside all three,
on the tasks trained on, on tasks held out of training (the starter's supervised lessons did have them), and on every
desk task in other words. Evaluations of a seed have the same start files in each arm; training never sees those.

`./just bench transfer` trains and evaluates what the store's transfer.json does not list as done, so that the same
command goes on after an interruption. `--one RUN,RUN` takes finished training runs of `--from STORE`, in the order of
the seeds, and what is still trained here then trains on the same tasks as those.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson
from pydantic import BaseModel, ConfigDict

from benchmarks.figure import report
from benchmarks.reworded import copy_reworded
from benchmarks.transfer_table import ALL, Results, as_json, change, markdown, sentence, table
from cluster.launch import engine_for
from openforge.config import Config, load
from openforge.config.models import Trainer
from openforge.errors import InfraError, UsageError
from openforge.ids import RunId, new_run_id
from openforge.store.connect import find_run, query
from openforge.task import load_tasks
from openforge_tui.cli import output
from openforge_tui.cli.prepare import prepare
from openforge_tui.cli.run import follow
from openforge_tui.cli.train import run_shown
from openforge_tui.evaluate import (
    Checkpoint,
    evaluation_config,
    evaluation_specs,
    find_checkpoint,
    run_evaluation,
    saved_steps,
)
from openforge_tui.policies import place
from openforge_tui.train import Training, first_weights, trainer_folder
from openforge_tui.verify_run import run_config
from trainer.checkpoints import checkpoint_step, last_checkpoint
from trainer.evaluation import Graded
from trainer.settings import shares

ARMS = {"before": (), "one": ("react",), "many": ("react", "pi", "codex")}
HARNESSES = ARMS["many"]
HELD_OUT = ("desk/count-errors", "desk/rename-md", "desk/set-port")  # of three kinds: data, files, configuration
POLICY = "starter"
_ALIKE = ("mode", "steps", "groups", "group_size", "updates", "lr", "lr_schedule", "optimizer", "kl", "entropy")
_ALIKE += ("clip_low", "clip_high", "penalize_invalid_calls", "verl")
_GRADED = "SELECT task, harness, CASE WHEN state IN ('done', 'failed') THEN reward END AS reward FROM rollouts"


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Plan(_Kept):
    """What must be equal for results to stand in one table. `policy`: the starter's folder; `tasks`: trained on."""

    policy: str
    steps: int
    samples: int
    tasks: tuple[str, ...]


class Evaluated(_Kept):
    """An evaluation that came to its end: the checkpoint's name, and the run that holds its rollouts."""

    checkpoint: str
    run: str


class Progress(_Kept):
    """What is done, by `ARM/SEED`. `training` lists runs that were begun; their checkpoints say how far they are."""

    plan: Plan
    training: dict[str, str] = {}
    evaluations: dict[str, Evaluated] = {}

    @classmethod
    def open(cls, path: Path, plan: Plan) -> Self:
        """What `path` holds, or nothing done yet. UsageError when it was begun with another plan."""
        if not path.exists():
            return cls(plan=plan)
        found = cls.model_validate_json(path.read_bytes())
        for name, was in found.plan.model_dump().items():
            if (asked := getattr(plan, name)) != was:
                raise UsageError(
                    f"{path} was begun with {name} = {was}, and this is {asked}",
                    hint="give the options it was begun with, or another --store",
                )
        return found

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        partial = path.with_suffix(".partial")
        partial.write_text(self.model_dump_json(indent=2) + "\n")
        partial.rename(path)


@dataclass(frozen=True)
class Taken:
    """A finished training run that stands for one seed of an arm."""

    checkpoint: Checkpoint
    tasks: tuple[str, ...]


def take(source: Path, text: str, arm: str, trainer: Trainer) -> Taken:
    """The last checkpoint of a training run of the store `source`. UsageError when it is no such run of this arm, or
    trained otherwise than `trainer` says."""
    run_id = find_run(source, text)
    config = run_config(source, run_id)
    for name in _ALIKE:
        if (was := getattr(config.trainer, name)) != (wanted := getattr(trainer, name)):
            raise UsageError(f"--{arm} {text}: it trained with trainer.{name} = {was}, and this table has {wanted}")
    parts, even = dict(shares(config.run.harnesses, config.trainer.mix)), dict(shares(ARMS[arm], {}))
    if parts != even:
        told = ", ".join(f"{name} {part:.2f}" for name, part in parts.items())
        raise UsageError(f"--{arm} {text}: it trained inside {told}, not {', '.join(even)} in equal parts")
    if (first := first_weights(trainer_folder(source, run_id))) != place(POLICY):
        raise UsageError(f"--{arm} {text}: it trained {first}, not {place(POLICY)}")
    last = max(saved_steps(source, run_id), default=0)
    if last < config.trainer.steps:
        raise UsageError(
            f"--{arm} {text}: it was trained to step {last} of {config.trainer.steps}",
            hint=f"openforge train --resume {run_id}",
        )
    trained = tuple(sorted(task.ref for task in load_tasks(config.run.tasks)))
    return Taken(find_checkpoint(source, f"{run_id}@{last}"), trained)


def trained_tasks(taken: Mapping[str, Taken]) -> tuple[str, ...]:
    """Those that the runs taken trained on, else the desk without HELD_OUT. UsageError when the runs differ in them."""
    sets = {one.tasks for one in taken.values()}
    if len(sets) > 1:
        told = "; ".join(f"{key} ({one.checkpoint.name}): {', '.join(one.tasks)}" for key, one in taken.items())
        raise UsageError(f"the runs trained on different tasks, so they cannot be compared: {told}")
    return sets.pop() if sets else tuple(task.ref for task in load_tasks(["desk"]) if task.ref not in HELD_OUT)


class Bench:
    """One table in the making, in the folder `store`, which is a store of runs as well."""

    def __init__(self, store: Path, plan: Plan, seeds: list[int], taken: Mapping[str, Taken], model_dir: Path) -> None:
        self.store, self.plan, self.seeds, self.taken, self.model_dir = store, plan, seeds, taken, model_dir
        self.progress = Progress.open(store / "transfer.json", plan)

    def save(self) -> None:
        self.progress.save(self.store / "transfer.json")

    def run(self, reworded: Path) -> None:
        """Do what is not done: the starter first, then seed by seed, so that an early table compares something."""
        tasks = ["desk", str(reworded)]
        before = {f"before/{seed}": seed for seed in self.seeds}
        self._evaluate(before, Checkpoint(POLICY, POLICY, self.model_dir), tasks)
        for key, arm, seed in arms_and_seeds(self.seeds):
            if self._is_done(key):
                continue
            taken = self.taken.get(key)
            self._evaluate({key: seed}, taken.checkpoint if taken else self._train(key, arm, seed), tasks)

    def _is_done(self, key: str) -> bool:
        done, taken = self.progress.evaluations.get(key), self.taken.get(key)
        if done and taken and done.checkpoint != taken.checkpoint.name:
            raise UsageError(
                f"{key} is evaluated already, with {done.checkpoint} and not {taken.checkpoint.name}",
                hint="another --store",
            )
        return done is not None

    def _train(self, key: str, arm: str, seed: int) -> Checkpoint:
        """Train to the end, from the last checkpoint when it was begun before. InfraError when it was stopped."""
        run_id = RunId(self.progress.training.setdefault(key, new_run_id()))
        self.save()
        changed = {"run.harnesses": list(ARMS[arm]), "run.tasks": list(self.plan.tasks), "run.seed": seed}
        config = configured(self.store, {**changed, "trainer.steps": self.plan.steps, "trainer.eval_every": -1})
        training = Training(config, self.store, self.model_dir, run_id, self.store)
        if trained_steps(training) < self.plan.steps:
            output.say(f"{key}: {self.plan.steps} steps, {trained_steps(training)} of them done")
            run_shown(training, table=False)
        if trained_steps(training) < self.plan.steps:
            raise InfraError(f"{key} was not trained to its end", hint="the same command goes on")
        return find_checkpoint(self.store, f"{run_id}@{self.plan.steps}")

    def _evaluate(self, keys: Mapping[str, int], checkpoint: Checkpoint, tasks: list[str]) -> None:
        left = {key: seed for key, seed in keys.items() if key not in self.progress.evaluations}
        if left:
            output.run_async(self._evaluate_all(left, checkpoint, tasks))

    async def _evaluate_all(self, keys: Mapping[str, int], checkpoint: Checkpoint, tasks: list[str]) -> None:
        """Evaluate one checkpoint for each seed, with one server."""
        samples = self.plan.samples
        changed: dict[str, object] = {"run.harnesses": list(HARNESSES), "run.tasks": tasks}
        changed["trainer.eval_samples"] = samples
        async with engine_for(configured(self.store, changed), checkpoint.model_dir, output.say) as engine:
            for key, seed in keys.items():
                changed["run.seed"] = seed * samples  # so that start files of different seeds do not overlap
                mine = evaluation_config(configured(self.store, changed), checkpoint)
                specs = evaluation_specs(mine, checkpoint, self.store)
                run_id = new_run_id()
                output.say(f"{key}: evaluating {checkpoint.name}, {len(specs)} rollouts, run {run_id}")
                with follow(len(specs)) as on_event:
                    told = await run_evaluation(
                        mine, self.store, checkpoint, specs, engine, run_id, say=output.say, on_event=on_event
                    )
                if told.overall.n == 0:
                    raise InfraError(f"{key}: no rollout was graded", hint=f"openforge rollouts {run_id}")
                self.progress.evaluations[key] = Evaluated(checkpoint=checkpoint.name, run=run_id)
                self.save()

    def results(self) -> Results:
        """Rollouts of the arms and seeds asked for that are evaluated; those of a run come from its journal."""
        keys = [(f"{arm}/{seed}", arm, seed) for arm in ARMS for seed in self.seeds]
        done = self.progress.evaluations
        return {(arm, seed): graded(self.store, done[key].run) for key, arm, seed in keys if key in done}


def trained_steps(training: Training) -> int:
    """The step of its last whole checkpoint, 0 when there is none."""
    checkpoint = last_checkpoint(training.folder)
    return 0 if checkpoint is None else checkpoint_step(checkpoint)


def arms_and_seeds(seeds: list[int]) -> Iterator[tuple[str, str, int]]:
    """Key, arm and seed of what is trained, in order."""
    for seed in seeds:
        for arm in ("one", "many"):
            yield f"{arm}/{seed}", arm, seed


def graded(store: Path, run_id: str) -> list[Graded]:
    """What came of an evaluation's rollouts."""
    rows = query(store, f"{_GRADED} ORDER BY rollout_id", runs=[run_id])
    order = {name: number for number, name in enumerate(HARNESSES)}
    rows.sort(key=lambda row: order[row["harness"]])
    return [Graded(row["task"], row["harness"], row["reward"]) for row in rows]


def configured(store: Path, changed: Mapping[str, object]) -> Config:
    """The recipe tiny-cpu and `changed`, whatever openforge.toml and the environment say."""
    return load(store, overrides={"trainer.recipe": "tiny-cpu", "store.path": str(store), **changed}, env={}).config


def show(bench: Bench) -> int:
    """Print the table, its notes, the figures and the sentence; the same as table.md and table.json. Exit code."""
    results, trained = bench.results(), bench.plan.tasks
    rows = table(results, trained)
    text, said = "\n".join([markdown(rows), "", *notes(bench.progress, bench.seeds)]), sentence(rows)
    (bench.store / "table.md").write_text(f"{text}\n\n{said}\n")
    numbers = {"rows": list(as_json(rows)), "sentence": said, **bench.progress.model_dump()}
    (bench.store / "table.json").write_bytes(orjson.dumps(numbers, option=orjson.OPT_INDENT_2))
    print(text, end="\n\n", flush=True)
    good = []
    for arm, harness in (("one", "react"), ("many", ALL)):
        if (changed := change(rows, arm, harness)) is not None:
            name = f"{arm} against before, evaluated in {harness}: lower end of the change"
            good.append(report(name, changed.low, "", 0, at_least=True))
    count = sum(map(len, results.values()))
    if count:
        errors = sum(one.reward is None for graded in results.values() for one in graded)
        good.append(report("errors of ours", errors / count, "of rollouts", 0.02))
    print(said, flush=True)
    return 0 if all(good) else 5


def notes(progress: Progress, seeds: list[int]) -> Iterator[str]:
    """What a reader of the table must know, as a list."""
    plan = progress.plan
    held_out = [task.ref for task in load_tasks(["desk"]) if task.ref not in plan.tasks]
    yield "- Cells: success, Wilson's 95 % interval over the rollouts of all seeds, lowest and highest seed."
    if held_out:
        yield f"- Held-out: {', '.join(held_out)}; not trained on, but in the starter's supervised lessons."
    else:
        yield "- Held-out: none, training had every desk task."
    yield "- Paraphrased: every desk task in other words, which neither the lessons nor training had."
    yield f"- {POLICY}: {plan.policy}; {plan.samples} rollouts for each task, harness and seed."
    for key, _, _ in arms_and_seeds(seeds):
        if done := progress.evaluations.get(key):
            yield f"- {key}: checkpoint {done.checkpoint}, evaluated in run {done.run}."


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./just bench transfer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", default="0,1", help="with commas")
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    parser.add_argument("--samples", type=int, default=4, help="rollouts a task and harness in an evaluation")
    parser.add_argument("--store", type=Path, default=Path(".openforge/bench-transfer"), help="where it all is kept")
    parser.add_argument("--one", default="", help="finished training runs, in the order of the seeds")
    parser.add_argument("--many", default="", help="the same, trained in three harnesses")
    parser.add_argument("--from", dest="source", type=Path, default=Path(".openforge"), help="the store of those runs")
    return parser.parse_args()


def split_seeds(text: str) -> list[int]:
    """`0,1` as numbers. UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--seeds {text}: expected whole numbers with commas", hint="for example --seeds 0,1")
    return list(dict.fromkeys(map(int, parts)))


def pair(arm: str, runs: str, seeds: list[int]) -> dict[str, str]:
    """Runs by `ARM/SEED`, the first for the first seed. UsageError when there are more runs than seeds."""
    names = [name for part in runs.split(",") if (name := part.strip())]
    if len(names) > len(seeds) or len(set(names)) < len(names):
        raise UsageError(f"--{arm} {runs}: a run for each of {len(seeds)} seeds at most, each once", hint="see --seeds")
    return {f"{arm}/{seed}": name for seed, name in zip(seeds, names, strict=False)}


def main() -> int:
    typed = options()
    store, source, seeds = typed.store.resolve(), typed.source.resolve(), split_seeds(typed.seeds)
    named = {**pair("one", typed.one, seeds), **pair("many", typed.many, seeds)}
    store.mkdir(parents=True, exist_ok=True)
    changed = {"trainer.eval_samples": typed.samples, "run.harnesses": list(HARNESSES)}
    config = configured(store, changed if typed.steps is None else {**changed, "trainer.steps": typed.steps})
    model_dir = prepare(config)
    assert model_dir is not None  # nothing is served elsewhere
    taken = {key: take(source, run, key.partition("/")[0], config.trainer) for key, run in named.items()}
    plan = Plan(policy=model_dir.name, steps=config.trainer.steps, samples=typed.samples, tasks=trained_tasks(taken))
    bench = Bench(store, plan, seeds, taken, model_dir)
    try:
        with tempfile.TemporaryDirectory(prefix="openforge-bench-") as folder:
            bench.run(copy_reworded(load_tasks(["desk"]), Path(folder)))
    finally:  # what is known is worth showing, whatever ended the rest
        code = show(bench)
    return code


if __name__ == "__main__":
    sys.exit(output.run_command(main))
