"""A made-up training run, its orchestrator's records as cluster/training.py and the trainer write them."""

from pathlib import Path

from synthetic import SyntheticRun

from openforge.ids import RolloutId, rollout_id

HARNESSES = ("react", "pi", "codex")
TASKS = ("fix-mean", "rename-md", "count-lines", "sort-csv")


class SyntheticTraining(SyntheticRun):
    """`step` after `step`: 12 groups (each task in each harness) of 8 rollouts that get better."""

    def __init__(self, store_root: Path, run: str = "r0000000ttt", *, samples: int = 8, seed: int = 0) -> None:
        super().__init__(store_root, run, seed=seed)
        self.samples, self.last, self._numbers = samples, 0, 0
        self.started(0, 0)

    def started(self, incarnation: int, from_step: int, pid: int = 0) -> None:
        """A trainer begins, or begins again from a checkpoint."""
        self.incarnation, self.last = incarnation, from_step
        self.orchestrator.append("train.start", incarnation=incarnation, from_step=from_step, pid=pid)

    def ask(self, step: int) -> list[tuple[RolloutId, float | None]]:
        """The rollouts of a step to their end, with their rewards; None where an error of ours ended one."""
        return [
            self._rollout(task, harness, step, f"{self.incarnation}.{step}.{task}.{harness}")
            for task in TASKS
            for harness in HARNESSES
            for _ in range(self.samples)
        ]

    def _rollout(self, task: str, harness: str, step: int, group: str) -> tuple[RolloutId, float | None]:
        self._numbers += 1
        rollout, rng = rollout_id(self.run_id, task, harness, self._numbers), self.random
        self.state(rollout, "queued", purpose="train", step=step, group_id=group, seed=step)
        self.state(rollout, "starting")
        self.state(rollout, "running")
        if rng.random() < 0.02:
            self.state(rollout, "error", error_class="sandbox", detail="gone", duration_s=1.0)
            return rollout, None
        chance = {"react": 0.2, "pi": 0.1, "codex": 0.3}[harness] + 0.03 * step
        reward = 1.0 if rng.random() < chance else rng.choice((0.0, 0.0, 0.5))
        self.orchestrator.append("grade", rollout_id=rollout, attempt=0, reward=reward)
        self.state(rollout, "done", duration_s=2.0, exit_code=0, invalid_calls=int(rng.random() < 0.3))
        return rollout, reward

    def step(self) -> int:
        """Ask, learn, tell."""
        step = self.last + 1
        asked = self.ask(step)
        learned = {rollout: reward for rollout, reward in asked if reward is not None}
        self.orchestrator.append(
            "train.step",
            step=step,
            incarnation=self.incarnation,
            weight_version=str(step),
            rollouts=sorted(learned),
            samples=len(learned) + 5,
            staleness_max=step % 3,
        )
        values = {
            "train.reward": sum(learned.values()) / len(learned),
            "train.rollouts": len(learned),
            "train.samples_per_rollout": (len(learned) + 5) / len(learned),
            "train.staleness_max": step % 3,
            "train.staleness_mean": (step % 3) / 2,
            "train.invalid_calls": 0.3 - step * 0.01,
            "train.breaks": 5,
            "train.rows_refused": 1,
            "train.rollouts_unused": 2,
            "train.errors.sandbox": len(asked) - len(learned),
            "train.step_s": 60.0 + step,
            "train.kl": 0.001 * step,
            "train.entropy": 1.2 - 0.02 * step,
            "train.tokens_per_s": 900.0 + 10 * step,
            "train.time_s.gen": 40.0,
            "train.time_s.update": 20.0 + step,
        }
        for harness in HARNESSES:
            mine = [reward >= 1 for name, reward in learned.items() if f".{harness}." in name]
            values[f"train.success.{harness}"] = sum(mine) / len(mine)
        self.metrics(step, values)
        self.last = step
        return step

    def evaluated(self, success: float, *, n: int = 48) -> None:
        """An evaluation at the step that was made last."""
        numbers = {"eval.n": n, "eval.errors": 0, "eval.success": success}
        self.metrics(self.last, {**numbers, "eval.success.low": success - 0.1, "eval.success.high": success + 0.12})

    def metrics(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.orchestrator.append("metric", step=step, name=name, value=float(value), incarnation=self.incarnation)

    def train(self, steps: int) -> None:
        """So many steps, evaluated before the first and at every tenth."""
        if self.last == 0:
            self.evaluated(0.2)
        for _ in range(steps):
            if self.step() % 10 == 0:
                self.evaluated(0.2 + 0.02 * self.last)
