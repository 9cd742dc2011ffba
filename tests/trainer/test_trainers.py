import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

sys.path.append(str(Path(__file__).parent))

from toy_step import LONE, ROLLOUTS, VOCAB, Rollouts, Step  # noqa: E402
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # noqa: E402

from openforge.errors import InfraError  # noqa: E402
from trainer.trainers import step_metrics  # noqa: E402


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
