"""The parts of `./just bench transfer` that need no policy: wordings, intervals, what is done already, the table."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.reworded import WORDINGS, copy_reworded
from benchmarks.transfer import (
    HELD_OUT,
    POLICY,
    Bench,
    Evaluated,
    Plan,
    Progress,
    Taken,
    configured,
    graded,
    pair,
    show,
    split_seeds,
    take,
    trained_steps,
    trained_tasks,
)
from benchmarks.transfer_table import Cell, Results, as_json, change, column_of, difference, markdown, sentence, table
from cluster.policy_server import model_hash
from openforge.config.models import Config, Trainer
from openforge.errors import UsageError
from openforge.ids import RecorderId, RunId, rollout_id
from openforge.journal.writer import JournalWriter
from openforge.task import Task, load_tasks
from openforge_tui.evaluate import Checkpoint
from openforge_tui.policies import place
from openforge_tui.train import Training
from trainer.checkpoints import MARKER
from trainer.evaluation import Graded, wilson

DESK = load_tasks(["desk"])
FOUR = Trainer(steps=4)
PLAN = Plan(policy="starter-1", steps=16, samples=4, tasks=("desk/count-lines", "desk/fix-mean"))


def write_run(store_root: Path, run_id: str, config: Config, *states: tuple[str, str, float | None]) -> None:
    """A run's journal: its configuration, and rollouts of a desk task by harness, state and reward."""
    journal = JournalWriter(store_root / "runs" / run_id, RecorderId("orchestrator-a"), RunId(run_id))
    told = {"tasks": ["desk"], "samples": 1, "policy": {"model": "starter"}, "version": "0"}
    journal.append("run.start", config=config.model_dump(), harnesses=list(config.run.harnesses), **told)
    for sample, (harness, state, reward) in enumerate(states):
        name = rollout_id(RunId(run_id), "set-port", harness, sample)
        told = {"rollout_id": name, "attempt": 0, "task": "desk/set-port", "harness": harness, "sample": sample}
        if reward is not None:
            journal.append("grade", rollout_id=name, attempt=0, reward=reward)
        journal.append("rollout.state", state="queued", **told)
        journal.append("rollout.state", state=state, **told)
    journal.append("run.end", state="done")
    journal.close()


def save_step(store_root: Path, run_id: str, step: int) -> None:
    folder = store_root / "runs" / run_id / "trainer" / f"global_step_{step}" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    (folder.parents[1] / MARKER).write_text("{}")


def rollouts(*shares: tuple[str, str, int, int]) -> list[Graded]:
    """Task, harness, successes, rollouts."""
    return [Graded(task, harness, float(i < good)) for task, harness, good, n in shares for i in range(n)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The starter that the runs began with is a folder of the test's own."""
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))


# --- wordings


def test_every_desk_task_has_another_wording() -> None:
    assert set(WORDINGS) == {task.name for task in DESK}
    assert not [task.name for task in DESK if WORDINGS[task.name] == task.instruction]


@pytest.mark.parametrize("task", DESK, ids=lambda task: task.name)
def test_a_wording_names_the_same_files_and_numbers(task: Task) -> None:
    exact = re.findall(r"[\w-]*\.\w+|\b[A-Z]{2,}\b|\d+|\bteh\b", task.instruction)
    assert not [word for word in exact if word not in WORDINGS[task.name]]


def test_a_copy_differs_in_its_instruction_and_its_name_alone(tmp_path: Path) -> None:
    copies = load_tasks([str(copy_reworded(DESK, tmp_path))])
    assert len(copies) == len(DESK)
    for task, copy in zip(DESK, copies, strict=True):
        assert (copy.ref, copy.instruction) == (f"reworded/{task.name}-reworded", WORDINGS[task.name])
        (copy.root / "instruction.md").write_bytes((task.root / "instruction.md").read_bytes())
        assert copy.content_hash() == task.content_hash()
    load_tasks(["desk", str(tmp_path / "reworded")])  # no name twice: they run in one run


def test_held_out_tasks_are_of_different_kinds() -> None:
    kinds = [task.metadata["category"] for task in DESK if task.ref in HELD_OUT]
    assert len(set(kinds)) == len(HELD_OUT) == 3


# --- intervals


def test_a_cell_pools_its_seeds_and_keeps_each() -> None:
    cell = Cell({0: 9, 1: 5}, {0: 10, 1: 20})
    assert cell.success.value == pytest.approx(14 / 30)
    assert (cell.success.low, cell.success.high) == wilson(14, 30)
    assert cell.by_seed == {0: 0.9, 1: 0.25}


def test_the_interval_of_a_difference_is_newcombes() -> None:
    found = difference(Cell({0: 56}, {0: 70}), Cell({0: 48}, {0: 80}))  # the example of Newcombe 1998, table II (a)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_a_difference_of_certain_shares_stays_inside_its_bounds() -> None:
    found = difference(Cell({0: 10}, {0: 10}), Cell({0: 0}, {0: 10}))
    assert found.high == 1.0
    assert 0 < found.low < 1


# --- the table

TRAINED = ("desk/count-lines",)
RESULTS: Results = {
    ("before", 0): rollouts(("desk/count-lines", "react", 2, 40), ("desk/count-lines", "pi", 2, 40)),
    ("before", 1): rollouts(("desk/count-lines", "react", 6, 40), ("desk/count-lines", "pi", 6, 40)),
    ("one", 0): rollouts(("desk/count-lines", "react", 40, 40), ("desk/count-lines", "pi", 30, 40)),
    ("one", 1): [
        *rollouts(("desk/count-lines", "react", 38, 40), ("desk/count-lines", "pi", 5, 40)),
        *rollouts(("desk/set-port", "pi", 1, 4), ("reworded/count-lines-reworded", "pi", 3, 4)),
        Graded("desk/count-lines", "pi", None),
    ],
}


def test_a_tasks_column_follows_from_what_was_trained_on() -> None:
    columns = [column_of(task, TRAINED) for task in ("desk/count-lines", "desk/set-port", "reworded/count-lines-x")]
    assert columns == ["trained_on", "held_out", "paraphrased"]


def test_rows_are_arms_by_harness_and_all_together() -> None:
    rows = {(row.arm, row.harness): row for row in table(RESULTS, TRAINED)}
    assert list(rows) == [(arm, harness) for arm in ("before", "one") for harness in ("react", "pi", "all")]
    everywhere = rows["one", "all"].cells["trained_on"]
    assert everywhere is not None
    assert (sum(everywhere.successes.values()), sum(everywhere.n.values())) == (113, 160)


def test_a_column_without_tasks_is_a_dash() -> None:
    lines = markdown(table(RESULTS, TRAINED)).splitlines()
    assert lines[2] == "| before | react | 0.10 [0.05, 0.19] of 80; seeds 0.05–0.15 | - | - | 0 |"
    assert {line.count("|") for line in lines} == {7}


def test_an_error_of_ours_is_counted_and_is_no_failure() -> None:
    row = next(row for row in table(RESULTS, TRAINED) if (row.arm, row.harness) == ("one", "pi"))
    cell = row.cells["trained_on"]
    assert cell is not None
    assert (row.errors, sum(cell.n.values())) == (1, 80)


def test_errors_alone_are_counted_where_nothing_was_graded() -> None:
    rows = table({("one", 0): [Graded("desk/count-lines", "pi", None)]}, TRAINED)
    assert [(row.cells["trained_on"], row.errors) for row in rows] == [(None, 1), (None, 1)]


def test_json_has_every_number_of_the_table() -> None:
    row = next(iter(as_json(table(RESULTS, TRAINED))))
    low, high = wilson(8, 80)
    numbers = {"success": 0.1, "low": low, "high": high, "n": 80, "by_seed": {"0": 0.05, "1": 0.15}}
    assert row == {
        "arm": "before",
        "harness": "react",
        "trained_on": numbers,
        "held_out": None,
        "paraphrased": None,
        "errors": 0,
    }


# --- the sentence


def against_before(harness: str, before: int, after: int) -> Results:
    shares = {"before": before, "one": after}
    return {(arm, 0): rollouts(("desk/count-lines", harness, good, 40)) for arm, good in shares.items()}


@pytest.mark.parametrize(("after", "verb"), [(36, "lifted"), (22, "did not measurably change"), (4, "lowered")])
def test_the_sentence_claims_what_the_interval_allows(after: int, verb: str) -> None:
    said = sentence(table(against_before("codex", 20, after), TRAINED))
    assert said.startswith(f"Training on react alone {verb} codex ({(after - 20) / 40:+.2f} [")
    assert f"higher in {int(after > 20)} of 1 seeds" in said


def test_the_sentence_says_in_how_many_seeds() -> None:
    said = sentence(table(RESULTS, TRAINED))
    assert "lifted pi" in said
    assert "higher in 1 of 2 seeds" in said


def test_without_both_arms_nothing_is_claimed() -> None:
    rows = table({("before", 0): RESULTS["before", 0]}, TRAINED)
    assert change(rows, "one", "pi") is None
    assert sentence(rows).startswith("Nothing can be said")


# --- what is done already


def test_what_was_done_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "transfer.json"
    progress = Progress.open(path, PLAN)
    progress.training["one/0"] = "r1"
    progress.evaluations["before/0"] = Evaluated(checkpoint="starter", run="r2")
    progress.save(path)
    assert Progress.open(path, PLAN) == progress
    assert Progress.open(tmp_path / "other.json", PLAN) == Progress(plan=PLAN)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "changed", [{"steps": 8}, {"samples": 8}, {"tasks": ("desk/fix-mean",)}, {"policy": "starter-2"}], ids=str
)
def test_another_plan_does_not_mix_with_what_was_done(tmp_path: Path, changed: dict[str, object]) -> None:
    path = tmp_path / "transfer.json"
    Progress(plan=PLAN).save(path)
    with pytest.raises(UsageError, match=f"was begun with {next(iter(changed))} = "):
        Progress.open(path, PLAN.model_copy(update=changed))


def test_a_training_is_as_far_as_its_last_whole_checkpoint(tmp_path: Path) -> None:
    training = Training(Config(), tmp_path, tmp_path, RunId("r1"), tmp_path)
    assert trained_steps(training) == 0
    for step in (4, 8):
        save_step(tmp_path, "r1", step)
    (training.folder / "global_step_8" / MARKER).unlink()  # it was cut off
    assert trained_steps(training) == 4


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    progress = Progress(plan=PLAN)
    for key in ("before/0", "one/0", "many/0"):
        progress.evaluations[key] = Evaluated(checkpoint="x", run="r1")
    progress.save(tmp_path / "transfer.json")
    Bench(tmp_path, PLAN, [0], {}, tmp_path / "no-policy").run(tmp_path / "no-tasks")


def test_another_run_for_what_is_evaluated_already_is_refused(tmp_path: Path) -> None:
    progress = Progress(plan=PLAN)
    for key in ("before/0", "one/0"):
        progress.evaluations[key] = Evaluated(checkpoint="r1@16", run="r9")
    progress.save(tmp_path / "transfer.json")
    taken = {"one/0": Taken(Checkpoint("r2@16", "r2"), PLAN.tasks)}
    with pytest.raises(UsageError, match="one/0 is evaluated already, with r1@16 and not r2@16"):
        Bench(tmp_path, PLAN, [0], taken, tmp_path).run(tmp_path)


def test_an_evaluations_rollouts_come_from_its_journal(tmp_path: Path) -> None:
    states = [("codex", "failed", 0.0), ("react", "done", 1.0), ("pi", "error", None), ("react", "error", 1.0)]
    write_run(tmp_path, "r1", Config(), *states)
    found = [(one.task, one.harness, one.reward) for one in graded(tmp_path, "r1")]
    expected = [("react", 1.0), ("react", None), ("pi", None), ("codex", 0.0)]
    assert found == [("desk/set-port", harness, reward) for harness, reward in expected]


def test_the_table_is_printed_kept_and_ends_with_the_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path, PLAN.model_copy(update={"tasks": ("desk/set-port",)}), [0], {}, tmp_path)
    for number, (arm, reward) in enumerate({"before": 0.0, "one": 1.0}.items(), 1):
        write_run(tmp_path, f"r{number}", Config(), *[("react", "done", reward), ("pi", "done", 0.0)] * 20)
        bench.progress.evaluations[f"{arm}/0"] = Evaluated(checkpoint=f"c{number}", run=f"r{number}")
    assert show(bench) == 0
    printed = capsys.readouterr().out
    assert "| one | react | 1.00 [0.84, 1.00] of 20; one seed | - | - | 0 |" in printed
    assert "one against before, evaluated in react: lower end of the change: 0.772 (goal ≥ 0) ok" in printed
    assert "errors of ours: 0 of rollouts (goal ≤ 0.02) ok" in printed
    assert "did not measurably change pi" in printed.splitlines()[-1]
    kept = json.loads((tmp_path / "table.json").read_bytes())
    assert (tmp_path / "table.md").read_text().endswith(kept["sentence"] + "\n")
    assert (kept["evaluations"]["one/0"]["run"], len(kept["rows"])) == ("r2", 6)


# --- runs taken from a store


def trained_run(store_root: Path, run_id: str, harnesses: list[str], tasks: list[str], **trainer: object) -> None:
    run = {"harnesses": harnesses, "tasks": tasks}
    write_run(store_root, run_id, Config.model_validate({"run": run, "trainer": {"steps": 4, **trainer}}))
    folder = store_root / "runs" / run_id / "trainer"
    folder.mkdir()
    (folder / "plan.jsonl").write_text("")
    model = place(POLICY)
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    (folder / "first_weights.json").write_text(json.dumps({"folder": str(model), "hash": model_hash(model)}))


def test_a_finished_run_tells_its_tasks_and_its_last_checkpoint(tmp_path: Path) -> None:
    trained_run(tmp_path, "r1", ["react"], ["desk/set-port", "count-lines"])
    for step in (2, 4):
        save_step(tmp_path, "r1", step)
    taken = take(tmp_path, "r1", "one", FOUR)
    assert (taken.checkpoint.name, taken.checkpoint.step) == ("r1@4", 4)
    assert taken.tasks == ("desk/count-lines", "desk/set-port")


def test_a_run_of_another_budget_is_refused(tmp_path: Path) -> None:
    trained_run(tmp_path, "r1", ["react"], ["desk"], group_size=2)
    with pytest.raises(UsageError, match=r"trainer\.group_size = 2, and this table has 8"):
        take(tmp_path, "r1", "one", FOUR)


def test_a_run_of_another_policy_is_refused(tmp_path: Path) -> None:
    trained_run(tmp_path, "r1", ["react"], ["desk"])
    save_step(tmp_path, "r1", 4)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    told = {"folder": str(other), "hash": model_hash(other)}
    (tmp_path / "runs" / "r1" / "trainer" / "first_weights.json").write_text(json.dumps(told))
    with pytest.raises(UsageError, match=r"it trained .*other"):
        take(tmp_path, "r1", "one", FOUR)


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    trained_run(tmp_path, "r1", ["react"], ["desk"])
    save_step(tmp_path, "r1", 2)
    with pytest.raises(UsageError, match="trained to step 2 of 4") as error:
        take(tmp_path, "r1", "one", FOUR)
    assert error.value.hint == "openforge train --resume r1"


@pytest.mark.parametrize(
    ("arm", "harnesses", "mix"),
    [("one", ["pi"], {}), ("many", ["react"], {}), ("many", ["react", "pi", "codex"], {"pi": 3.0})],
)
def test_a_run_of_another_mix_is_refused(tmp_path: Path, arm: str, harnesses: list[str], mix: dict[str, float]) -> None:
    trained_run(tmp_path, "r1", harnesses, ["desk"], mix=mix)
    with pytest.raises(UsageError, match="in equal parts"):
        take(tmp_path, "r1", arm, FOUR)


def test_all_arms_train_on_the_tasks_of_the_runs_taken() -> None:
    checkpoint = Checkpoint("r1@4", "r1")
    whole = tuple(task.ref for task in DESK)
    assert set(whole) - set(trained_tasks({})) == set(HELD_OUT)
    assert trained_tasks({"one/0": Taken(checkpoint, whole)}) == whole
    with pytest.raises(UsageError, match="trained on different tasks"):
        trained_tasks({"one/0": Taken(checkpoint, whole), "many/0": Taken(checkpoint, whole[:3])})


# --- options


def test_runs_stand_for_the_seeds_in_their_order() -> None:
    assert split_seeds("3, 1,3") == [3, 1]
    assert pair("one", "r1, r2", [3, 1, 4]) == {"one/3": "r1", "one/1": "r2"}
    for runs in ("r1,r2,r3", "r1,r1"):
        with pytest.raises(UsageError, match="each once"):
            pair("one", runs, [0, 1])
    with pytest.raises(UsageError, match="whole numbers"):
        split_seeds("0,x")


def test_the_recipe_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENFORGE_TRAINER__LR", "0.5")
    config = configured(tmp_path, {"run.tasks": ["desk/set-port"], "trainer.eval_every": -1})
    lr = tomllib.loads((Path(__file__).parents[2] / "trainer/recipes/tiny-cpu.toml").read_text())["trainer"]["lr"]
    assert (config.trainer.recipe, config.trainer.lr, config.trainer.eval_every) == ("tiny-cpu", lr, -1)
    assert config.run.tasks == ("desk/set-port",)
