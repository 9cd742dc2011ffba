from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

from trainer.plan import evaluation_groups, training_groups, write_plan  # noqa: E402
from trainer.verl_plugins.plan_dataset import PlanDataset  # noqa: E402


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    write_plan(tmp_path / "plan.jsonl", training_groups(["desk/a", "desk/b"], {"react": 1, "codex": 1}, 6, 0))
    return tmp_path / "plan.jsonl"


def test_what_is_written_is_what_verl_reads(plan: Path) -> None:
    read = PlanDataset(str(plan))
    planned = training_groups(["desk/a", "desk/b"], {"react": 1, "codex": 1}, 6, 0)
    assert [row["extra_info"] for row in (read[n] for n in range(len(read)))] == [group._asdict() for group in planned]


def test_a_row_names_the_loop_the_task_and_the_harness_and_renders_nothing(plan: Path) -> None:
    row = PlanDataset(str(plan))[0]
    group = row["extra_info"]
    assert row["agent_name"] == "openforge"
    assert (row["data_source"], row["raw_prompt"][0]["content"]) == (group["harness"], group["task"])
    assert group["purpose"] == "train"
    assert not [key for key, value in row.items() if isinstance(value, torch.Tensor)]


def test_several_files_are_read_in_order_and_index_counts_on(plan: Path, tmp_path: Path) -> None:
    write_plan(tmp_path / "eval.jsonl", evaluation_groups(["desk/a"], ["react"], 2, 0))
    rows = PlanDataset([str(plan), str(tmp_path / "eval.jsonl")])
    assert [rows[n]["index"] for n in range(len(rows))] == list(range(8))
    assert [rows[n]["extra_info"]["purpose"] for n in (5, 6, 7)] == ["train", "eval", "eval"]


def test_verls_own_loader_makes_batches_of_whole_groups_in_the_order_of_the_plan(plan: Path) -> None:
    from torch.utils.data import SequentialSampler
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.utils.dataset.rl_dataset import collate_fn

    rows = PlanDataset(str(plan))

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(rows, batch_size=2, sampler=SequentialSampler(rows), collate_fn=collate_fn)

    whole = [list(batch["extra_info"]) for batch in loader()]
    assert [group for batch in whole for group in batch] == rows.groups
    first = loader()
    next(iter_first := iter(first))
    resumed = loader()
    resumed.load_state_dict(first.state_dict())
    assert [list(batch["extra_info"]) for batch in resumed] == [list(batch["extra_info"]) for batch in iter_first]
    assert [list(batch["extra_info"]) for batch in loader()][1:] == whole[1:]
