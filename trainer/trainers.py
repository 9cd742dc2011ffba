"""veRL's V1 trainers with what a step means here: each rollout weighs the same, and the store is told.

Only methods that veRL lets a subclass override; the algorithm, the workers and the weight sync are veRL's own.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from verl.protocol import DataProto
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.utils.padding import response_to_nested

from trainer import evaluation
from trainer.checkpoints import mark
from trainer.verl_plugins.replay import nothing_to_train
from trainer.versions import Versions
from trainer.weights import row_weights

_PHASES = {
    "gen": "gen",
    "old_log_prob": "logprobs",
    "ref": "logprobs",
    "adv": "advantage",
    "update_actor": "update",
    "update_weights": "sync",
    "save_checkpoint": "save",
    "testing": "eval",
}

Ask = Callable[[str, str, Mapping[str, Any] | None], dict[str, Any]]
"""Asks the orchestrator: method, path, body; the answer."""


class _Steps(PPOTrainer):  # type: ignore[misc]
    """Mixed in before a trainer of veRL. `ask` and `tell` are set by main.py before `init`."""

    ask: Ask
    tell: Callable[[dict[str, Any]], None]
    total_training_steps: int
    stop_asked = False

    # what a step is

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows are padded to whole mini-batches of one size: the number of optimizer updates a step is the config's,
        not a consequence of how many rows the rollouts became. Micro-batches of a fixed number of rows must be whole
        as well."""
        parts = self.config.actor_rollout_ref
        sizes = [
            *([] if parts.actor.use_dynamic_bsz else [parts.actor.ppo_micro_batch_size_per_gpu]),
            *([] if parts.ref.log_prob_use_dynamic_bsz else [parts.ref.log_prob_micro_batch_size_per_gpu]),
        ]
        return dp_size * int(self.config.openforge.updates) * math.lcm(*(int(size) for size in sizes if size))

    def _balance_batch(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.keys:
            raise nothing_to_train(self.global_steps)
        return super()._balance_batch(batch, *args, **kwargs)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages", "response_mask"]
        )
        mask = data["response_mask"]
        padded = DataProto(batch=data.to_padded_tensor())
        tokens = padded.batch["response_mask"].sum(-1).tolist()
        weights = torch.tensor(row_weights(batch.keys, [int(count) for count in tokens]))
        advantages = padded.batch["advantages"] * weights[:, None]
        fields = data.select("advantages")
        fields["advantages"] = response_to_nested(advantages, mask)
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        actor = self.config.actor_rollout_ref.actor
        batch.extra_info.update(
            {
                "calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0.0,
                "distillation_use_topk": False,
                "distillation_only": False,
                "global_batch_size": len(batch.keys) // self.config.openforge.updates,
                "num_mini_batch": self.config.openforge.updates,
                "epochs": actor.ppo_epochs,
                "seed": actor.data_loader_seed,
                "dataloader_kwargs": {"shuffle": actor.shuffle},
                "temperature": self.config.actor_rollout_ref.rollout.temperature,
            }
        )
        output = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        metrics.update(reduce_metrics(output))
        return batch

    # what is told

    def fit(self, agent_loop_manager: Any) -> None:
        self._say("ready", step=self.global_steps, steps=self.total_training_steps)
        super().fit(agent_loop_manager)

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        rows = self._rows(batch)
        values = step_metrics(rows, metrics, timing_raw)
        trained = sorted({row["rollout_id"] for row in rows})
        values |= self._lost(global_steps, trained)
        metrics.update({name.replace(".", "/", 1): value for name, value in values.items()})
        self.ask(
            "POST",
            "/steps",
            {
                "step": global_steps,
                "weight_version": self._version(global_steps),
                "rollouts": trained,
                "samples": len(rows),
                "staleness_max": int(values.get("train.staleness_max", 0)),
            },
        )
        self.ask("POST", "/metrics", {"step": global_steps, "metrics": values})
        if getattr(self, "_saved", None) == global_steps:
            self._mark_checkpoint()
        self._say("step", step=global_steps, metrics=values)

    def _lost(self, step: int, trained: Sequence[str]) -> dict[str, float]:
        """Rollouts that ended since the last step and taught nothing: errors by class, and those that were graded but
        never trained, since none of their rows could be used or they had grown too old."""
        late = self._may_be_late()
        self._trained = {*getattr(self, "_trained", ()), *trained}
        counted: set[str] = getattr(self, "_counted", set())
        self._counted = counted
        errors: Counter[str] = Counter()
        for view in [view for asked in range(max(1, step - late), step + 1) for view in self._views("train", asked)]:
            if view["state"] == "error" and view["rollout_id"] not in counted:
                counted.add(view["rollout_id"])
                errors[view["error_class"] or "unknown"] += 1
        graded = [view["rollout_id"] for view in self._views("train", step - late) if view["reward"] is not None]
        values = {f"train.errors.{name}": float(count) for name, count in errors.items()}
        return values | {"train.rollouts_unused": float(len(set(graded) - self._trained))}

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        """What each row that is not padding says of its rollout, with its own staleness at this step."""
        real = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        told = tq.kv_batch_get(
            keys=[key for key, _ in real], partition_id=batch.partition_id, select_fields=["extra_fields", "rm_scores"]
        )
        found = []
        for (_, tag), extra, scores in zip(real, list(told["extra_fields"]), told["rm_scores"].unbind(), strict=True):
            staleness = self.global_steps - 1 - tag["min_global_steps"]
            found.append({**getattr(extra, "data", extra), "reward": float(scores.sum()), "staleness": staleness})
        return found

    def _validate(self) -> dict[str, float]:
        self._say("evaluating", step=self.global_steps)
        try:
            told = super()._validate()
        except ValueError as error:  # veRL asks for rows where no rollout gave one; ours are counted all the same
            if "empty list" not in str(error):
                raise
            told = {}
        step = self.global_steps
        graded = [
            evaluation.Graded(view["task"], view["harness"], view["reward"])
            for view in self._views("eval", step)
            if view["state"] != "cancelled"
        ]
        values = evaluation.metrics(evaluation.evaluate(graded))
        self.ask("POST", "/metrics", {"step": step, "metrics": values})
        self._say("evaluation", step=step, metrics=values)
        return {**told, **{name.replace(".", "/", 1): value for name, value in values.items()}}

    def _views(self, purpose: str, step: int) -> list[dict[str, Any]]:
        """The rollouts that this start of the trainer asked for at a step; an earlier one may have asked there too."""
        mine = f"{self.config.openforge.incarnation}."
        found = self.ask("GET", f"/rollouts?purpose={purpose}&step={step}", None)["rollouts"]
        return [view for view in found if (view["key"] or "").startswith(mine)]

    # how it ends, and how it can go on

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self._saved = self.global_steps

    def _mark_checkpoint(self) -> None:
        """Comes after the step was evaluated and told: a trainer that goes on from here makes this step no more, so
        whatever was not told of it by now would be lost."""
        folder = mark(Path(self.config.trainer.default_local_dir), self.global_steps, self._version(self.global_steps))
        self._say("saved", step=self.global_steps, path=str(folder))

    def on_step_end(self) -> None:
        super().on_step_end()
        if self.stop_asked and self.global_steps < int(self.total_training_steps):
            if getattr(self, "_saved", None) != self.global_steps:
                self._save_checkpoint()
            self.total_training_steps = self.global_steps  # the loop ends when this step has been told
            self._say("stopping", step=self.global_steps)

    def _may_be_late(self) -> int:
        """Steps between the one that a rollout was asked for and the last one that may train it."""
        return 0

    def _version(self, step: int) -> str:
        return Versions.from_settings(self.config.openforge).name(step)

    def _say(self, event: str, **values: Any) -> None:
        self.tell({"event": event, **values})


class SyncTrainer(_Steps, PPOTrainerSync):  # type: ignore[misc]
    """Rollouts and updates in turn: every rollout is sampled from the newest weights."""


class AsyncTrainer(_Steps, PPOTrainerSeparateAsync):  # type: ignore[misc]
    """Rollouts go on while weights are updated: a rollout may be some versions old, and says so."""

    def _may_be_late(self) -> int:
        return int(self.config.trainer.v1.sampler.max_off_policy_threshold)


TRAINERS = {"sync": SyncTrainer, "separate_async": AsyncTrainer}


def step_metrics(
    rows: Sequence[Mapping[str, Any]], verl: Mapping[str, Any], timing: Mapping[str, float]
) -> dict[str, float]:
    """The numbers of one step under our names. `rows` may be several a rollout; each rollout counts once."""
    rollouts = {row["rollout_id"]: row for row in rows}.values()
    values = {
        "train.reward": _mean(row["reward"] for row in rollouts),
        "train.rollouts": float(len(rollouts)),
        "train.samples_per_rollout": len(rows) / max(1, len(rollouts)),
        "train.staleness_max": float(max((row["staleness"] for row in rows), default=0)),
        "train.staleness_mean": _mean(row["staleness"] for row in rollouts),
        "train.invalid_calls": _mean(float(row["invalid_calls"] > 0) for row in rollouts),
        "train.breaks": float(len(rows) - len(rollouts)),
        "train.rows_refused": float(sum(row["rows_refused"] for row in rollouts)),
        "train.step_s": timing.get("step", 0.0),
    }
    for key, prefix in (("harness", "train.success."), ("task", "train.success_task.")):
        by: dict[str, list[float]] = defaultdict(list)
        for row in rollouts:
            by[row[key]].append(row["success"])
        values |= {prefix + name: _mean(found) for name, found in by.items()}
    names = {
        "actor/ppo_kl": "train.kl",
        "actor/grad_norm": "train.grad_norm",
        "actor/pg_clipfrac": "train.clip_fraction",
        "actor/entropy": "train.entropy",
        "actor/entropy_loss": "train.entropy",
        "actor/kl_loss": "train.kl_to_reference",
        "actor/lr": "train.lr",
    }
    values |= {ours: float(verl[theirs]) for theirs, ours in names.items() if theirs in verl}
    if "perf/total_num_tokens" in verl and timing.get("step"):
        values["train.tokens_per_s"] = float(verl["perf/total_num_tokens"]) / timing["step"]
    for theirs, ours in _PHASES.items():
        if theirs in timing:
            name = f"train.time_s.{ours}"
            values[name] = values.get(name, 0.0) + timing[theirs]
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _mean(values: Any) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
