"""The fold of a live run's records says what the views say."""

from openforge.journal.reader import Tail
from openforge.store.fold import KINDS, RunFold
from openforge.store.lists import list_rollouts, list_runs
from openforge.store.snapshot import live_writers


def folded(run) -> RunFold:
    fold = RunFold(run.run_id)
    for record in Tail(run.run_dir, KINDS).poll():
        fold.add(record)
    return fold


def assert_same(run) -> None:
    live = live_writers(run.run_dir)
    fold = folded(run)
    assert fold.rollout_rows(live) == list_rollouts(run.store_root, run.run_id)
    assert [fold.run_row(live)] == list_runs(run.store_root, [run.run_id])


def varied(make_run):
    run = make_run()
    run.rollout(task="a", harness="react", reward=1.0)
    run.rollout(task="a", harness="pi", reward=0.25, turns=7)
    broken = f"{run.run_id}.b.codex.0"
    run.state(broken, "queued", step=3, group_id="g", seed=7)
    run.state(broken, "starting")
    run.call(broken)
    run.recorder.append("call.abort", rollout_id=broken, attempt=0, call_id="cx", error_class="engine")
    run.state(broken, "error", error_class="sandbox", detail="x" * 300)
    run.state(broken, "queued", attempt=1)
    run.state(broken, "running", attempt=1)
    run.call(broken, attempt=1, ids=False, completion_tokens=None, prompt_tokens=None)
    run.state(f"{run.run_id}.b.codex.1", "queued")
    run.state(f"{run.run_id}.b.codex.2", "cancelled", detail="cancelled while queued")
    return run


def test_a_clock_that_is_set_back_makes_no_time_less_than_none(make_run, monkeypatch) -> None:
    clock = iter([4_000_000_000.0] * 7)  # the year 2096, then now
    monkeypatch.setattr("openforge.journal.writer.time.time", lambda: next(clock, 1_795_000_000.0))
    run = make_run()
    rollout = f"{run.run_id}.a.react.0"
    run.state(rollout, "running")
    while next(clock, None):
        pass
    run.state(rollout, "done")
    assert_same(run)
    [row] = list_rollouts(run.store_root, run.run_id)
    assert (row["seconds"], row["started_at"].year) == (None, 2096)


def test_a_run_under_way(make_run) -> None:
    assert_same(varied(make_run))


def test_a_run_that_is_held_and_goes_on_and_dies(make_run) -> None:
    run = varied(make_run)
    for paused, state in ((True, "paused"), (False, "running"), (True, "paused")):
        run.orchestrator.append("run.pause", paused=paused)
        assert folded(run).run_row(live_writers(run.run_dir))["state"] == state
        assert_same(run)
    run.close()
    assert folded(run).run_row(set())["state"] == "interrupted"
    assert_same(run)


def test_a_run_whose_writers_died(make_run) -> None:
    run = varied(make_run)
    run.close()
    assert live_writers(run.run_dir) == set()
    assert_same(run)


def test_a_run_that_has_ended(make_run) -> None:
    run = varied(make_run)
    run.end("failed")
    assert_same(run)


def test_calls_in_flight_and_just_answered(make_run) -> None:
    run = make_run()
    rollout = run.rollout(turns=2)
    run.recorder.append(
        "call.open", rollout_id=rollout, attempt=0, call_id="c9", dialect="chat", mode="train", stream=False
    )
    fold = folded(run)
    assert [name for name, _ in fold.open_calls.values()] == [rollout]
    assert [one.tokens for one in fold.recent] == [30, 30]
