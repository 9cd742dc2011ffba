"""One step of veRL's own trainer on toy rollouts, without its processes."""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from queue_in_memory import Queue
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from trainer.trainers import SyncTrainer

VOCAB = 12
Rollouts = dict[str, tuple[float, list[list[int]]]]
"""By `group_session`: the reward, and the response mask of each row."""

ROLLOUTS: Rollouts = {
    "a_0": (1.0, [[1, 1, 1]]),
    "a_1": (0.0, [[1, 1, 0, 1, 1], [1, 1], [1, 0, 0, 1, 1, 1, 1]]),
    "b_0": (0.0, [[1]]),
    "b_3": (1.0, [[1, 1, 1, 1, 1, 1, 0, 1], [1]]),
    "b_4": (1.0, [[1, 1, 1, 1]]),
}
LONE: Rollouts = {"c_2": (1.0, [[1, 1, 1], [1, 1, 1, 1]])}
"""The others of its group came to nothing."""


class Step:
    """One step of veRL's own trainer, from its replay buffer to its loss, on toy rollouts."""

    def __init__(self, queue: Queue, rollouts: Rollouts, updates: int) -> None:
        algorithm = {
            "adv_estimator": "grpo",
            "use_kl_in_reward": False,
            "gamma": 1.0,
            "lam": 1.0,
            "norm_adv_by_std_in_grpo": True,
            "rollout_correction": {"bypass_mode": True},
        }
        rollout = {"n": 8, "temperature": 1.0}
        parts = {"ref": {"log_prob_use_dynamic_bsz": True}, "model": {}}
        actor = {
            "use_dynamic_bsz": True,
            "calculate_entropy": True,
            "entropy_coeff": 0.0,
            "ppo_epochs": 1,
            "data_loader_seed": 3,
        }
        told = {
            "algorithm": algorithm,
            "openforge": {"updates": updates, "incarnation": 1},
            "actor_rollout_ref": {"rollout": rollout, "actor": {**actor, "shuffle": updates > 1}, **parts},
        }
        self.queue, self.rollouts = queue, rollouts
        self.told: list[tuple[str, str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.views: list[dict[str, Any]] = []
        trainer = self.trainer = SyncTrainer.__new__(SyncTrainer)
        trainer.config, trainer.global_steps, trainer.use_critic = OmegaConf.create(told), 5, False
        trainer.tokenizer = SimpleNamespace(eos_token_id=0)
        trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0]}, update_actor=self._update)
        trainer._rollout_moe_lb_metrics_accumulator = None
        trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        trainer.ask, trainer.tell = self._ask, self.events.append
        self.batch = trainer._balance_batch(self._sampled(), {})
        self.queue_old_log_probs()
        trainer._compute_advantage(self.batch, {})

    def _sampled(self) -> Any:
        fields, tags, keys = [], [], []
        for name, (reward, masks) in self.rollouts.items():
            for number, mask in enumerate(masks):
                ids = [(7 * number + place + len(keys)) % VOCAB for place in range(len(mask))]
                extra = {"rollout_id": name, "task": "t", "harness": "react", "success": reward}
                extra |= {"invalid_calls": 0, "rows_refused": 0}
                row = AgentLoopOutput(
                    prompt_ids=[1] * (number + 2),
                    response_ids=ids,
                    response_mask=mask,
                    response_logprobs=[math.log(1 / VOCAB) if flag else 0.0 for flag in mask],
                    reward_score=reward,
                    num_turns=1,
                    metrics=AgentLoopMetrics(),
                    extra_fields=extra,
                ).as_dict()
                row["input_ids"] = torch.cat([row["prompts"], row["responses"]])
                uid = name.split("_")[0]
                fields.append({**row, "uid": uid, "loss_mask": row["response_mask"]})
                keys.append(f"{name}_{number}")
                tags.append({"seq_len": len(row["input_ids"]), "min_global_steps": 3 + number, "max_global_steps": 5})
        for key, row in zip(keys, fields, strict=True):
            self.queue.rows[key] = row
        return tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags)

    def queue_old_log_probs(self) -> None:
        self.trainer._compute_old_log_prob(self.batch, {})

    def _ask(self, method: str, path: str, body: Any) -> dict[str, Any]:
        self.told.append((method, path, body))
        return {"rollouts": self.views}

    def _update(self, batch: Any) -> dict[str, Any]:
        self.updated = batch
        return {"metrics": {"grad_norm": [2.0], "mfu": [0.0], "ppo_kl": [0.5, 1.5]}}

    def weights(self) -> dict[str, float]:
        """The advantage of each row's first id."""
        return {key: float(self.queue.rows[key]["advantages"][0]) for key in self.batch.keys}

    def gradient(self, logits: Any, micro_batches: int) -> Any:
        """What veRL's actor would add up: the gradient of its loss over the batch."""
        told = ActorConfig(strategy="fsdp2", rollout_n=8, use_dynamic_bsz=True, loss_agg_mode="token-mean")
        tokens = sum(int(self.queue.rows[key]["response_mask"].sum()) for key in self.batch.keys)
        total = torch.zeros_like(logits)
        size = math.ceil(len(self.batch.keys) / micro_batches)
        for start in range(0, len(self.batch.keys), size):
            keys = self.batch.keys[start : start + size]
            names = ["prompts", "responses", "response_mask", "old_log_probs", "advantages", "input_ids"]
            data = self.queue.kv_batch_get(keys, "train", names)
            scores = logits.log_softmax(-1)
            flat = data.pop("input_ids").values()
            predicted = scores[flat.roll(-1)]  # of the next id, as a model gives it
            tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(self.batch.keys))
            loss, _ = ppo_loss(told, {"log_probs": predicted}, data)
            total += torch.autograd.grad(loss, logits)[0]
        return total

    def expected(self, logits: Any) -> Any:
        """By hand: the mean over rollouts of each one's mean over its sampled ids, advantages within the group."""
        groups: dict[str, list[float]] = defaultdict(list)
        for name, (reward, _) in self.rollouts.items():
            groups[name.split("_")[0]].append(reward)
        losses = []
        for name, (reward, masks) in self.rollouts.items():
            rewards = torch.tensor(groups[name.split("_")[0]])
            advantage = (reward - rewards.mean()) / (rewards.std() + 1e-6) if len(rewards) > 1 else 0.0
            sampled = [
                token
                for number, mask in enumerate(masks)
                for token, flag in zip(self.queue.rows[f"{name}_{number}"]["responses"].tolist(), mask, strict=True)
                if flag
            ]
            ratio = (logits.log_softmax(-1)[sampled] - math.log(1 / VOCAB)).exp()
            losses.append(-(ratio * advantage).mean())
        return torch.autograd.grad(torch.stack(losses).mean(), logits)[0]
