"""What the store tells about a run, as candidates; and a person's SQL."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "openforge" / "store"))

from synthetic import SyntheticRun

from openforge.errors import UsageError
from openforge.ids import rollout_id
from trainer.candidates import read_candidates


@pytest.fixture
def run(store_root: Path) -> Iterator[SyntheticRun]:
    run = SyntheticRun(store_root)
    run.rollout(sample=0)
    run.rollout(harness="pi", sample=0, reward=0.0)
    yield run
    run.close()


def wanted(run: SyntheticRun, **sql: str) -> dict[str, bool]:
    """Whether each rollout is wanted."""
    found = read_candidates(run.store_root, [run.run_id], **sql)
    return {candidate.rollout_id.partition(".")[2]: candidate.wanted for candidate in found}


def test_a_rollout_comes_with_its_rows(run: SyntheticRun) -> None:
    pi, react = read_candidates(run.store_root, [run.run_id])
    assert (react.task, react.harness, react.state, react.reward) == ("t", "react", "done", 1.0)
    assert (pi.harness, pi.reward, react.calls, react.has_ids, react.refused) == ("pi", 0.0, 3, True, ())
    last = run.truth.calls[react.rollout_id][-1]
    ids = [*(run.truth.prompts[last] or []), *run.truth.answers[last]]
    (row,) = react.rows
    assert (row.length, row.highest_id, row.vocab, row.wanted) == (len(ids), max(ids), "v1", True)
    assert row.fingerprint != pi.rows[0].fingerprint


def test_equal_rows_have_equal_fingerprints_and_another_mask_another(run: SyntheticRun) -> None:
    for number, mask in enumerate(([0, 1, 1], [0, 1, 1], [0, 0, 1])):
        rollout = rollout_id(run.run_id, "same", "react", number)
        for state in ("queued", "done"):
            run.state(rollout, state)
        record = {"sample_id": f"x{number}", "call_ids": ["c"], "token_ids": [5, 6, 7], "loss_mask": mask}
        run.recorder.append("sample", rollout_id=rollout, attempt=0, **record, is_main=True, weight=1.0, reason="root")
    prints = [one.rows[0].fingerprint for one in read_candidates(run.store_root, [run.run_id]) if one.task == "same"]
    assert prints[0] == prints[1] != prints[2]


def test_the_main_row_is_last(run: SyntheticRun) -> None:
    rollout = rollout_id(run.run_id, "t", "react", 0)
    record = {"call_ids": ["c"], "token_ids": [5, 6], "loss_mask": [0, 1], "weight": 1.0, "reason": "branch"}
    run.recorder.append("sample", rollout_id=rollout, attempt=0, sample_id="zz", is_main=False, **record)
    (found,) = [one for one in read_candidates(run.store_root, [run.run_id]) if one.rollout_id == rollout]
    assert [row.length for row in found.rows] == [2, 240]


def test_calls_without_ids_and_paths_without_a_row_are_told(run: SyntheticRun) -> None:
    silent = rollout_id(run.run_id, "t", "codex", 0)
    run.state(silent, "running")
    run.call(silent, ids=False)
    run.recorder.append("sample.refused", rollout_id=silent, attempt=0, call_ids=["c"], reason="auxiliary")
    codex = read_candidates(run.store_root, [run.run_id])[0]
    assert (codex.rollout_id, codex.calls, codex.has_ids) == (silent, 1, False)
    assert (codex.rows, codex.refused, codex.reward) == ((), ("auxiliary",), None)


def test_rows_of_an_attempt_that_was_given_up_are_not_there(run: SyntheticRun) -> None:
    again = rollout_id(run.run_id, "t", "react", 0)
    run.state(again, "queued", attempt=1)
    (found,) = [one for one in read_candidates(run.store_root, [run.run_id]) if one.rollout_id == again]
    assert (found.rows, found.reward) == ((), None)


@pytest.mark.contract
def test_where_knows_the_columns_of_rollouts_and_of_samples(run: SyntheticRun) -> None:
    assert wanted(run, where="harness = 'pi' AND calls = 3") == {"t.pi.0": True, "t.react.0": False}
    assert wanted(run, where="reward = 1 AND len(token_ids) < 1000") == {"t.pi.0": False, "t.react.0": True}


@pytest.mark.contract
def test_where_may_hold_for_a_rollout_without_a_row(run: SyntheticRun) -> None:
    run.state(rollout_id(run.run_id, "t", "codex", 0), "error")
    assert wanted(run, where="harness = 'codex'") == {"t.codex.0": True, "t.pi.0": False, "t.react.0": False}


@pytest.mark.contract
def test_sql_chooses_rollouts(run: SyntheticRun) -> None:
    sql = "SELECT rollout_id FROM messages WHERE rollout_id LIKE '%.pi.%'"
    assert wanted(run, sql=sql) == {"t.pi.0": True, "t.react.0": False}
    assert wanted(run, sql=sql, where="reward = 1") == {"t.pi.0": False, "t.react.0": False}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("sql", "complaint"),
    [
        ({"sql": "SELECT task FROM rollouts"}, "no rollout_id"),
        ({"sql": "SELECT 'r9.t.pi.0' AS rollout_id"}, "no rollout of"),
        ({"sql": "DROP TABLE x"}, "only statements that read"),
        ({"where": "rewrd = 1"}, "rewrd"),
        ({"where": "1 = (SELECT count(*) FROM read_text('/etc/passwd'))"}, "read_text"),
    ],
)
def test_sql_that_is_wrong_or_does_more_than_read_is_refused(
    run: SyntheticRun, sql: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_candidates(run.store_root, [run.run_id], **sql)
