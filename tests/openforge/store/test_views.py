"""What the views say, compared with what was written."""

from typing import Any

import duckdb
import pytest
from synthetic import SyntheticRun

from openforge.ids import RecorderId, RolloutId, rollout_id
from openforge.journal.writer import JournalWriter
from openforge.store.connect import connect, query

ROLLOUT = RolloutId("r0000000aaa.t.react.0")


@pytest.fixture
def run(make_run) -> SyntheticRun:
    made: SyntheticRun = make_run()
    return made


def rows(run: SyntheticRun, sql: str) -> list[dict[str, Any]]:
    return query(run.store_root, sql)


def one(run: SyntheticRun, sql: str) -> Any:
    (row,) = rows(run, sql)
    (value,) = row.values()
    return value


def test_the_prompt_of_every_call_is_rebuilt_from_what_each_added(run: SyntheticRun) -> None:
    for sample in range(3):
        run.rollout(sample=sample, turns=6)
    found = {row["call_id"]: row["prompt_ids"] for row in rows(run, "SELECT call_id, prompt_ids FROM calls")}
    assert found == run.truth.prompts
    assert one(run, "SELECT bool_and(len(prompt_ids) = prompt_len) FROM calls") is True


def test_a_branch_continues_the_call_it_names_not_the_one_before(run: SyntheticRun) -> None:
    root = run.call(ROLLOUT)
    left, right = run.call(ROLLOUT, root), run.call(ROLLOUT, root)
    under_left, again = run.call(ROLLOUT, left), run.call(ROLLOUT)
    found = {row["call_id"]: row["prompt_ids"] for row in rows(run, "SELECT call_id, prompt_ids FROM calls")}
    assert found == run.truth.prompts
    assert found[under_left][: len(found[left])] == found[left]
    assert len(found[again]) == 50
    assert right in found


def test_a_prompt_is_null_below_an_answer_without_ids_and_the_row_stays(run: SyntheticRun) -> None:
    root = run.call(ROLLOUT)
    blind = run.call(ROLLOUT, root, completion_ids=None, logprobs=None)
    below = run.call(ROLLOUT, blind)
    found = {row["call_id"]: row["prompt_ids"] for row in rows(run, "SELECT call_id, prompt_ids FROM calls")}
    assert found[root] == run.truth.prompts[root]
    assert found[blind] == run.truth.prompts[blind]
    assert found[below] is None


def test_a_prompt_is_null_when_the_parent_was_never_recorded(run: SyntheticRun) -> None:
    run.call(ROLLOUT, None, parent_call_id="c-lost")
    assert rows(run, "SELECT prompt_ids FROM calls") == [{"prompt_ids": None}]


def test_an_empty_answer_is_an_answer(run: SyntheticRun) -> None:
    root = run.call(ROLLOUT, sampled=0)
    child = run.call(ROLLOUT, root)
    assert one(run, f"SELECT prompt_ids FROM calls WHERE call_id = '{child}'") == run.truth.prompts[child]


@pytest.mark.parametrize("view", ["calls", "tokens", "messages", "rollouts", "samples"])
def test_counting_reads_no_ids_no_tree_and_no_vocabulary(run: SyntheticRun, view: str) -> None:
    run.rollout()
    con = connect(run.store_root)
    plan = explain(con, f"SELECT count(*) FROM {view}")
    assert "v1.jsonl" not in plan
    assert "input_ids" not in plan or view == "tokens"


def test_the_tree_is_read_when_prompts_are_asked_for(run: SyntheticRun) -> None:
    run.rollout()
    plan = explain(connect(run.store_root), "SELECT prompt_ids FROM calls")
    assert "input_ids" in plan  # so that the test above could fail


def test_asking_for_one_rollout_filters_below_the_tree(run: SyntheticRun) -> None:
    run.rollout()
    plan = explain(connect(run.store_root), f"SELECT prompt_ids FROM calls WHERE rollout_id = '{ROLLOUT}'")
    assert plan.count(f"rollout_id = '{ROLLOUT}'") >= 2


def explain(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    return str(con.execute(f"EXPLAIN {sql}").fetchall()[0][1])


def test_tokens_are_each_path_in_order_with_what_was_sampled(run: SyntheticRun) -> None:
    run.rollout(turns=4)
    last = run.truth.calls[ROLLOUT][-1]
    path = [*(run.truth.prompts[last] or []), *run.truth.answers[last]]
    found = rows(run, "SELECT * FROM tokens ORDER BY position")
    assert [row["token_id"] for row in found] == path
    assert [row["position"] for row in found] == list(range(len(path)))
    assert [row["text"] for row in found] == [f"t{token}" for token in path]
    mask = rows(run, "SELECT loss_mask FROM samples")[0]["loss_mask"]
    assert [int(row["sampled"]) for row in found] == mask
    for row in found:
        assert (row["logprob"] is not None) == row["sampled"]
        assert row["weight_version"] == ("w1" if row["sampled"] else None)


def test_a_token_carries_the_weights_that_sampled_it(run: SyntheticRun) -> None:
    run.call(
        ROLLOUT, sampled=5, weight_version_min="a", weight_version_max="c", versions=[[0, "a"], [2, "b"], [4, "c"]]
    )
    found = rows(run, "SELECT weight_version FROM tokens WHERE sampled ORDER BY position")
    assert [row["weight_version"] for row in found] == ["a", "a", "b", "b", "c"]


def test_tokens_without_a_vocabulary_have_ids_and_no_text(run: SyntheticRun) -> None:
    run.call(ROLLOUT)
    (run.store_root / "vocab" / "v1.jsonl").unlink()
    assert one(run, "SELECT count(*) FROM tokens WHERE text IS NULL") == 80


def test_messages_are_what_each_call_added_with_long_texts_resolved(run: SyntheticRun) -> None:
    long = "long text " * 1000
    blob = run.recorder.blob(long)
    tool_calls = [{"id": "1", "name": "sh", "arguments": "{broken"}]
    messages = [
        {"position": 0, "role": "system", "text": None, "text_blob": blob},
        {"position": 1, "role": "user", "text": "[red]hi[/red]"},
        {
            "position": 2,
            "role": "assistant",
            "text": "",
            "tool_calls": [{"id": "1", "name": "sh", "arguments": "{broken"}],
        },
    ]
    run.call(ROLLOUT, messages=messages)
    found = rows(run, "SELECT position, role, text, tool_calls FROM messages ORDER BY position")
    assert [row["text"] for row in found] == [long, "[red]hi[/red]", ""]
    assert found[2]["tool_calls"] == tool_calls


def test_a_blob_written_by_two_writers_is_one_blob(run: SyntheticRun) -> None:
    assert run.recorder.blob("same") == run.orchestrator.blob("same")
    blob = run.recorder.blob("same")
    run.call(ROLLOUT, messages=[{"position": 0, "role": "user", "text": None, "text_blob": blob}])
    assert rows(run, "SELECT text FROM messages") == [{"text": "same"}]
    assert one(run, "SELECT count(*) FROM blobs") == 1


def test_a_sample_has_the_reward_of_the_latest_attempt_and_earlier_attempts_are_dropped(run: SyntheticRun) -> None:
    run.state(ROLLOUT, "running", 0)
    first = run.call(ROLLOUT, attempt=0)
    run.sample(ROLLOUT, [first], attempt=0)
    run.state(ROLLOUT, "error", 0, error_class="sandbox")
    run.state(ROLLOUT, "running", 1)
    second = run.call(ROLLOUT, attempt=1)
    run.sample(ROLLOUT, [second], attempt=1)
    run.orchestrator.append("grade", rollout_id=ROLLOUT, attempt=1, reward=0.25)
    run.state(ROLLOUT, "done", 1)
    assert rows(run, "SELECT attempt, reward, call_ids, task, harness FROM samples") == [
        {"attempt": 1, "reward": 0.25, "call_ids": [second], "task": "t", "harness": "react"}
    ]
    assert rows(run, "SELECT attempt, state, reward, calls FROM rollouts") == [
        {"attempt": 1, "state": "done", "reward": 0.25, "calls": 1}
    ]
    assert rows(run, "SELECT attempt, state, error_class FROM attempts ORDER BY attempt") == [
        {"attempt": 0, "state": "error", "error_class": "sandbox"},
        {"attempt": 1, "state": "done", "error_class": None},
    ]


def test_a_rollout_counts_its_calls_tokens_and_times(run: SyntheticRun) -> None:
    run.rollout(turns=3, reward=0.5)
    (row,) = rows(run, "SELECT * FROM rollouts")
    assert (row["calls"], row["completion_tokens"], row["samples"]) == (3, 90, 1)
    assert row["prompt_tokens"] == sum(len(prompt or []) for prompt in run.truth.prompts.values())
    assert row["queued_at"] <= row["started_at"] <= row["ended_at"]
    assert row["exit_code"] == 0


def test_a_call_that_was_aborted_is_open_or_lost_is_visible(run: SyntheticRun) -> None:
    opened = {"dialect": "chat", "mode": "train", "stream": False}
    for call in ("c1", "c2"):
        run.recorder.append("call.open", rollout_id=ROLLOUT, attempt=0, call_id=call, **opened)
    run.recorder.append("call.abort", rollout_id=ROLLOUT, attempt=0, call_id="c1", error_class="policy", detail="gone")
    sql = "SELECT call_id, state, dialect, error_class FROM calls ORDER BY call_id"
    assert rows(run, sql) == [
        {"call_id": "c1", "state": "aborted", "dialect": "chat", "error_class": "policy"},
        {"call_id": "c2", "state": "open", "dialect": "chat", "error_class": None},
    ]
    run.recorder.close()
    assert rows(run, "SELECT state FROM calls WHERE call_id = 'c2'") == [{"state": "lost"}]


def test_states_are_honest_when_the_orchestrator_dies(run: SyntheticRun) -> None:
    run.state(ROLLOUT, "running")
    assert one(run, "SELECT state FROM runs") == "running"
    assert one(run, "SELECT state FROM rollouts") == "running"
    run.orchestrator.close()  # without run.end; the recorder still lives
    assert one(run, "SELECT state FROM runs") == "interrupted"
    assert one(run, "SELECT state FROM rollouts") == "lost"


@pytest.mark.parametrize("state", ["done", "failed", "error", "cancelled"])
def test_a_run_that_ended_says_how(run: SyntheticRun, state: str) -> None:
    run.end(state)
    assert one(run, "SELECT state FROM runs") == state


def test_a_state_written_late_does_not_move_a_rollout_back(run: SyntheticRun) -> None:
    for state in ("running", "done", "grading"):
        run.state(ROLLOUT, state)
    assert one(run, "SELECT state FROM rollouts") == "done"


def test_grades_egress_metrics_refusals_and_fingerprints(run: SyntheticRun) -> None:
    at = {"rollout_id": ROLLOUT, "attempt": 0}
    run.orchestrator.append("grade", **at, reward=1.0, details={"passed": ["a"]})
    run.recorder.append("egress", **at, host="example.com", port=443, decision="refuse", rule="proxy-only")
    run.recorder.append("call.refused", **at, error_class="sealed", detail="late")
    run.recorder.append("sample.refused", **at, call_ids=["c"], reason="bad_logprob")
    run.orchestrator.append("metric", step=3, name="reward", value=0.5)
    run.orchestrator.append("harness.fingerprint", harness="pi", version="1", fingerprint={"tools": 4})
    assert rows(run, "SELECT reward, details FROM grades") == [{"reward": 1.0, "details": '{"passed":["a"]}'}]
    assert rows(run, "SELECT host, port, decision FROM egress") == [
        {"host": "example.com", "port": 443, "decision": "refuse"}
    ]
    assert rows(run, "SELECT what, reason, call_ids FROM refused ORDER BY what") == [
        {"what": "call", "reason": "sealed", "call_ids": None},
        {"what": "sample", "reason": "bad_logprob", "call_ids": ["c"]},
    ]
    assert rows(run, "SELECT step, name, value FROM metrics") == [{"step": 3, "name": "reward", "value": 0.5}]
    assert rows(run, "SELECT fingerprint->>'tools' AS tools FROM harnesses") == [{"tools": "4"}]


def test_the_wire_bodies_can_be_asked_into(run: SyntheticRun) -> None:
    run.call(ROLLOUT, text="what is in x")
    sql = "SELECT request->>'$.messages[0].content' AS text, response->>'id' = call_id AS same FROM calls"
    assert rows(run, sql) == [{"text": "what is in x", "same": True}]


def test_tasks_say_how_their_rollouts_ended(run: SyntheticRun) -> None:
    run.rollout(sample=0, reward=1.0)
    run.rollout(sample=1, reward=0.0)
    run.state(rollout_id(run.run_id, "t", "react", 2), "queued")
    run.state(rollout_id(run.run_id, "t", "react", 2), "error", error_class="sandbox")
    (row,) = rows(run, "SELECT * EXCLUDE (run_id, task) FROM tasks")
    assert row == {"rollouts": 3, "graded": 2, "errors": 1, "reward": 0.5}


def test_a_rollout_says_what_it_was_asked_for(run: SyntheticRun) -> None:
    run.state(ROLLOUT, "queued", purpose="eval", step=4, group_id="g")
    run.state(ROLLOUT, "done", invalid_calls=2)
    for view in ("rollouts", "attempts"):
        sql = f"SELECT purpose, step, group_id, invalid_calls, state FROM {view}"
        assert rows(run, sql) == [{"purpose": "eval", "step": 4, "group_id": "g", "invalid_calls": 2, "state": "done"}]


def take_up_again(run: SyntheticRun, recorder_id: str, incarnation: int) -> JournalWriter:
    """A later orchestrator of the same run; its name says nothing of the order."""
    journal = JournalWriter(run.run_dir, RecorderId(recorder_id), run.run_id)
    journal.append(
        "run.start",
        config={"run": {"samples": 1 + incarnation}},
        tasks=[],
        harnesses=[],
        samples=1 + incarnation,
        policy={},
        version="0",
        incarnation=incarnation,
    )
    return journal


def test_a_run_that_is_taken_up_again_is_one_row_with_its_latest_state(run: SyntheticRun) -> None:
    sql = "SELECT state, samples, ended_at IS NULL AS going FROM runs"
    run.orchestrator.append("run.end", state="error", reason="killed")
    run.orchestrator.close()
    (created,) = rows(run, "SELECT created_at FROM runs")
    assert rows(run, sql) == [{"state": "error", "samples": 1, "going": False}]
    second = take_up_again(run, "orchestrator-0", 1)
    assert rows(run, sql) == [{"state": "running", "samples": 2, "going": True}]
    second.close()
    assert rows(run, sql) == [{"state": "interrupted", "samples": 2, "going": True}]
    third = take_up_again(run, "orchestrator-b", 2)
    third.append("run.end", state="done")
    third.close()
    assert rows(run, sql) == [{"state": "done", "samples": 3, "going": False}]
    assert rows(run, "SELECT created_at FROM runs") == [created]


def test_what_a_dead_orchestrator_left_is_lost_though_another_has_the_run(run: SyntheticRun) -> None:
    other = rollout_id(run.run_id, "t", "react", 1)
    for name in (ROLLOUT, other):
        run.state(name, "running")
    run.orchestrator.close()
    second = take_up_again(run, "orchestrator-0", 1)
    second.append("rollout.state", rollout_id=other, attempt=1, state="queued", task="t", harness="react")
    assert rows(run, "SELECT sample, attempt, state FROM attempts ORDER BY rollout_id, attempt") == [
        {"sample": 0, "attempt": 0, "state": "lost"},
        {"sample": 1, "attempt": 0, "state": "lost"},
        {"sample": None, "attempt": 1, "state": "queued"},
    ]
    second.close()


def step(run: SyntheticRun, step: int, incarnation: int, *names: str) -> None:
    fields = {"step": step, "incarnation": incarnation, "weight_version": f"{step}.{incarnation}"}
    run.orchestrator.append("train.step", **fields, rollouts=list(names), samples=len(names))


def test_rollouts_of_abandoned_steps_were_not_trained(run: SyntheticRun) -> None:
    start = run.orchestrator.append
    start("train.start", from_step=0, incarnation=0)
    for number in (1, 2, 3):
        step(run, number, 0, f"first-{number}")
    start("train.start", from_step=2, incarnation=1)  # step 3 is lost with the trainer that made it
    step(run, 3, 1, "second-3", "second-3b")
    step(run, 4, 1, "second-4")
    start("train.start", from_step=4, incarnation=2)
    sql = "SELECT step, rollout_id, weight_version FROM trained ORDER BY step, rollout_id"
    assert [tuple(row.values()) for row in rows(run, sql)] == [
        (1, "first-1", "1.0"),
        (2, "first-2", "2.0"),
        (3, "second-3", "3.1"),
        (3, "second-3b", "3.1"),
        (4, "second-4", "4.1"),
    ]
    start("train.start", from_step=1, incarnation=3)
    assert [row["step"] for row in rows(run, sql)] == [1]


def test_a_step_told_twice_trained_its_rollouts_once(run: SyntheticRun) -> None:
    run.orchestrator.append("train.start", from_step=0, incarnation=0)
    step(run, 1, 0, "a", "b")
    step(run, 1, 0, "a", "b")
    assert one(run, "SELECT count(*) FROM trained") == 2


def test_a_number_told_again_counts_once_and_the_latest_trainer_has_the_last_word(run: SyntheticRun) -> None:
    append = run.orchestrator.append
    append("metric", step=9, name="sft.loss", value=0.1)  # by no trainer, so that none goes back behind it
    append("train.start", from_step=0, incarnation=0)
    for number, value in ((0, 0.5), (1, 0.6), (1, 0.7), (2, 0.8), (3, 0.9)):
        append("metric", step=number, name="train.reward", value=value, incarnation=0)
    append("train.start", from_step=1, incarnation=1)
    append("metric", step=2, name="train.reward", value=0.1, incarnation=1)
    append("metric", step=2, name="train.kl", value=0.2, incarnation=1)
    sql = "SELECT name, step, value, incarnation FROM metrics ORDER BY name, step"
    assert [tuple(row.values()) for row in rows(run, sql)] == [
        ("sft.loss", 9, 0.1, None),
        ("train.kl", 2, 0.2, 1),
        ("train.reward", 0, 0.5, 0),
        ("train.reward", 1, 0.7, 0),
        ("train.reward", 2, 0.1, 1),
    ]


def test_of_two_orchestrators_numbers_the_later_ones_count_whatever_they_are_called(run: SyntheticRun) -> None:
    for _ in range(3):
        run.orchestrator.append("metric", step=1, name="eval.success", value=0.1)
    run.orchestrator.close()
    with take_up_again(run, "orchestrator-0", 1) as second:
        second.append("metric", step=1, name="eval.success", value=0.9)
    assert one(run, "SELECT value FROM metrics") == 0.9
