import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

sys.path.append(str(Path(__file__).parent))

import transfer_queue as tq  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from queue_in_memory import Queue  # noqa: E402
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput  # noqa: E402
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from openforge.errors import InfraError  # noqa: E402
from trainer.checkpoints import MARKER, saved_version  # noqa: E402
from trainer.trainers import SyncTrainer, step_metrics  # noqa: E402

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


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Step]:
    queue = Queue()
    monkeypatch.setattr(tq, "kv_batch_get", queue.kv_batch_get)
    monkeypatch.setattr(tq, "kv_batch_put", queue.kv_batch_put)
    return lambda rollouts=ROLLOUTS, updates=1: Step(queue, rollouts, updates)


def logits() -> Any:
    torch.manual_seed(0)
    return (0.05 * torch.randn(VOCAB)).requires_grad_()  # within the clip range of the uniform policy that sampled


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("rollouts", [ROLLOUTS, ROLLOUTS | LONE], ids=["whole groups", "a lone survivor"])
def test_r13_m14_m16_verls_gradient_is_the_mean_over_rollouts_however_many_rows_they_became(
    step: Callable[..., Step], rollouts: Rollouts, updates: int, micro_batches: int
) -> None:
    made, policy = step(rollouts, updates), logits()
    padding = [key for key in made.batch.keys if key.startswith("pad")]
    assert bool(padding) is (updates > 1)
    gradient, expected = made.gradient(policy, micro_batches), made.expected(policy)
    assert expected.norm() > 0.01
    assert torch.allclose(gradient, expected, atol=1e-5)


def test_m16_without_the_weights_longer_rollouts_would_dominate(
    step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.trainers.row_weights", lambda keys, tokens: [1.0] * len(keys))
    made, policy = step(), logits()
    assert not torch.allclose(made.gradient(policy, 1), made.expected(policy), atol=1e-3)


def test_m14_every_row_carries_the_advantage_of_its_rollout(step: Callable[..., Step]) -> None:
    found = step().weights()
    assert found["a_1_0"] == found["a_1_1"] == found["a_1_2"] < 0 < found["b_3_0"] == found["b_3_1"]


def test_r11_a_lone_survivor_has_no_advantage_though_verl_gives_it_its_reward(
    step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = step(ROLLOUTS | LONE).weights()
    assert (found["c_2_0"], found["c_2_1"]) == (0.0, 0.0)
    assert found["a_0_0"] > 0
    monkeypatch.setattr("trainer.trainers.row_weights", lambda keys, tokens: [1.0] * len(keys))
    assert step(ROLLOUTS | LONE).weights()["c_2_0"] == pytest.approx(1.0)


def test_r01_r07_rows_are_padded_to_whole_updates_by_masked_rows_with_the_same_fields(
    step: Callable[..., Step],
) -> None:
    made = step(updates=5)
    padding = [key for key in made.batch.keys if key.startswith("pad")]
    assert (len(made.batch.keys), len(padding)) == (10, 2)
    assert {key.split("_")[0] for key in padding} & {"a", "b"} == set()
    real = next(key for key in made.batch.keys if key not in padding)
    for key in padding:
        row = made.queue.rows[key]
        assert set(row) >= set(made.queue.rows[real])
        assert (int(row["response_mask"].sum()), int(row["loss_mask"].sum())) == (0, 0)
        assert not row["advantages"].any()


def test_the_number_of_updates_is_the_configurations_not_that_of_the_rows(step: Callable[..., Step]) -> None:
    made, metrics = step(updates=5), {}
    made.trainer._update_actor(made.batch, metrics)
    told = made.updated.extra_info
    assert (told["num_mini_batch"], told["global_batch_size"], "mini_batch_size" in told) == (5, 2, False)
    assert (metrics["actor/grad_norm"], metrics["actor/ppo_kl"]) == (2.0, 1.0)


def test_r10_padding_is_in_no_number_of_a_step(step: Callable[..., Step]) -> None:
    plain, padded = step(), step(updates=5)
    told = []
    for made in (plain, padded):
        made.trainer._compute_metrics(made.batch, {"actor/grad_norm": 2.0}, {"step": 4.0, "gen": 3.0}, 5, 0)
        told.append({path: body for _, path, body in made.told})
    values = told[0]["/metrics"]["metrics"]
    assert values["train.rollouts"] == 5
    assert values["train.samples_per_rollout"] == 8 / 5
    assert values["train.reward"] == pytest.approx(3 / 5)
    assert (told[0]["/steps"]["samples"], told[1]["/steps"]["samples"]) == (8, 8)
    differing = {name for name, value in values.items() if told[1]["/metrics"]["metrics"][name] != value}
    assert differing <= {"train.tokens_per_s"}


def test_a04_a_step_tells_what_it_learned_from_and_how_old_the_oldest_of_it_was(step: Callable[..., Step]) -> None:
    made = step()
    dead = {"state": "error", "error_class": "engine_dead", "reward": None}
    done = {"state": "done", "reward": 0.5}
    made.views = [
        {**dead, "key": "1.g.0", "rollout_id": "x"},
        {**done, "key": "1.g.1", "rollout_id": "a_0"},
        {**done, "key": "1.g.2", "rollout_id": "no-row"},
        {**dead, "key": "0.g.0", "rollout_id": "y"},
    ]
    metrics: dict[str, Any] = {}
    made.trainer._compute_metrics(made.batch, metrics, {"step": 4.0}, 5, 0)
    told = {path.split("?")[0]: body for _, path, body in made.told}
    assert told["/steps"]["step"] == 5
    assert told["/steps"]["rollouts"] == sorted(ROLLOUTS)
    assert told["/steps"]["staleness_max"] == 1  # step 5 trains on weights 4; the oldest row is of weights 3
    assert told["/metrics"]["metrics"]["train.errors.engine_dead"] == 1  # the other one an earlier start asked for
    assert told["/metrics"]["metrics"]["train.rollouts_unused"] == 1
    assert metrics["train/errors.engine_dead"] == 1  # TensorBoard's name
    assert made.events[-1]["event"] == "step"


def test_an_error_counts_once_in_the_step_that_comes_after_it_however_late(
    step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, views = step().trainer, {}
    monkeypatch.setattr(trainer, "_may_be_late", lambda: 2)
    monkeypatch.setattr(trainer, "_views", lambda purpose, step: views.get(step, []))
    views[4] = [{"rollout_id": "r4", "state": "running", "error_class": None, "reward": None}]
    assert trainer._lost(5, []) == {"train.rollouts_unused": 0}
    views[4] = [{"rollout_id": "r4", "state": "error", "error_class": "sandbox", "reward": None}]
    assert trainer._lost(6, []) == {"train.errors.sandbox": 1, "train.rollouts_unused": 0}
    assert trainer._lost(6, []) == {"train.rollouts_unused": 0}


def test_rows_are_padded_to_whole_micro_batches_of_a_fixed_size(step: Callable[..., Step]) -> None:
    trainer = step(updates=5).trainer
    assert trainer._get_required_batch_multiple(2) == 10
    parts = trainer.config.actor_rollout_ref
    parts.actor = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 4}
    assert trainer._get_required_batch_multiple(2) == 40
    parts.ref = {"log_prob_use_dynamic_bsz": False, "log_prob_micro_batch_size_per_gpu": 6}
    assert trainer._get_required_batch_multiple(2) == 120
    parts.ref.log_prob_micro_batch_size_per_gpu = None
    assert trainer._get_required_batch_multiple(2) == 40


def test_an_evaluation_without_a_row_has_its_numbers_all_the_same(
    step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(_: Any) -> dict[str, float]:
        raise ValueError("Received an empty list as keys")

    made = step()
    monkeypatch.setattr(PPOTrainerSync, "_validate", empty)
    made.views = [{"key": "1.g.0", "task": "t", "harness": "react", "reward": None, "state": "error"}]
    assert made.trainer._validate()["eval/errors"] == 1
    monkeypatch.setattr(PPOTrainerSync, "_validate", lambda _: [][0])
    with pytest.raises(IndexError):
        made.trainer._validate()


def row(rollout: str, **told: Any) -> dict[str, Any]:
    plain = {"rollout_id": rollout, "reward": 1.0, "success": 1.0, "staleness": 0, "invalid_calls": 0}
    return {**plain, "harness": "react", "task": "desk/a", "rows_refused": 0, **told}


def test_m16_each_rollout_counts_once_in_the_numbers_of_a_step() -> None:
    rows = [row("r1", harness="codex"), *[row("r2", reward=0.0, success=0.0, rows_refused=2)] * 3]
    values = step_metrics(rows, {}, {})
    assert values["train.reward"] == 0.5
    assert (values["train.success.codex"], values["train.success.react"]) == (1.0, 0.0)
    assert values["train.success_task.desk/a"] == 0.5
    assert values["train.rows_refused"] == 2


def test_numbers_that_are_not_finite_are_not_told_and_phases_are_summed() -> None:
    verl = {"actor/grad_norm": math.nan, "actor/ppo_kl": math.inf, "actor/lr": 0.1}
    values = step_metrics([row("r1")], verl, {"old_log_prob": 1.0, "ref": 2.0, "gen": 3.0, "unknown": 9.0})
    assert not {"train.grad_norm", "train.kl"} & set(values)
    assert values["train.lr"] == 0.1
    assert (values["train.time_s.logprobs"], values["train.time_s.gen"]) == (3.0, 3.0)


def test_s11_a_step_whose_every_rollout_was_void_ends_the_training_with_its_reason(step: Callable[..., Step]) -> None:
    with pytest.raises(InfraError, match="no rollout of step 5 gave anything to train"):
        step({})


def test_s11_a_step_without_rows_has_numbers_and_does_not_divide_by_them() -> None:
    values = step_metrics([], {}, {})
    assert (values["train.rollouts"], values["train.reward"], values["train.samples_per_rollout"]) == (0.0, 0.0, 0.0)


@pytest.fixture
def saving(step: Callable[..., Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Step, Path]:
    """A trainer whose base writes a checkpoint of one file, and syncs no weights."""
    made = step()
    made.trainer.config.trainer = {"default_local_dir": str(tmp_path)}
    made.trainer.total_training_steps = 9
    folder = tmp_path / "global_step_5"

    def save(_: Any) -> None:
        (folder / "actor").mkdir(parents=True, exist_ok=True)
        (folder / "actor" / "model.pt").write_bytes(b"weights")

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "on_step_end", lambda _: None)
    return made, folder


def test_a_checkpoint_is_marked_once_all_of_it_is_written(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()
    assert not (folder / MARKER).exists()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert json.loads((folder / MARKER).read_bytes())["step"] == 5
    assert sorted(path.name for path in folder.iterdir()) == ["actor", MARKER]
    assert [event["event"] for event in made.events] == ["saved", "step"]


def test_a_trainer_killed_before_its_step_was_told_makes_the_step_again(
    saving: tuple[Step, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()

    def gone(method: str, path: str, body: Any) -> dict[str, Any]:
        if path == "/metrics":
            raise InfraError("the orchestrator does not answer")
        return {"rollouts": []}

    monkeypatch.setattr(made.trainer, "ask", gone)
    with pytest.raises(InfraError):
        made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert not (folder / MARKER).exists()


def test_a_resumed_training_names_its_weights_alike_in_answers_steps_and_checkpoints(
    saving: tuple[Step, Path],
) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert saved_version(str(folder)) == "5.1"
    made.trainer.config.openforge.update({"incarnation": 2, "from_step": 4, "from_version": "4.1"})
    made.trainer._save_checkpoint()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    [_, told] = [body for _, path, body in made.told if path == "/steps"]
    assert told["weight_version"] == saved_version(str(folder)) == "5.2"


def test_what_is_no_checkpoint_of_ours_has_no_name_of_ours(tmp_path: Path) -> None:
    assert (saved_version(None), saved_version(str(tmp_path))) == ("", "")


def test_a_checkpoint_that_was_not_finished_has_no_mark(
    saving: tuple[Step, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = saving

    def fail(_: Any) -> None:
        folder.mkdir()
        raise OSError("no space left on device")

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", fail)
    with pytest.raises(OSError, match="no space"):
        made.trainer._save_checkpoint()
    assert list(folder.iterdir()) == []
    assert made.events == []


def test_asked_to_stop_it_saves_and_ends_with_the_step_under_way(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer.on_step_end()
    assert not folder.exists()
    made.trainer.stop_asked = True
    made.trainer.on_step_end()
    made.trainer._compute_metrics(made.batch, {}, {"step": 4.0}, 5, 0)
    assert (folder / MARKER).is_file()
    assert made.trainer.total_training_steps == 5
    assert [event["event"] for event in made.events] == ["stopping", "saved", "step"]


def test_asked_to_stop_a_step_that_was_saved_is_not_saved_again(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer._save_checkpoint()
    (folder / "actor" / "model.pt").unlink()
    made.trainer.stop_asked = True
    made.trainer.on_step_end()
    assert [event["event"] for event in made.events] == ["stopping"]
    assert list((folder / "actor").iterdir()) == []


def test_asked_to_stop_in_its_last_step_it_ends_as_it_would(saving: tuple[Step, Path]) -> None:
    made, folder = saving
    made.trainer.total_training_steps, made.trainer.stop_asked = 5, True
    made.trainer.on_step_end()
    assert made.events == []
    assert not folder.exists()
