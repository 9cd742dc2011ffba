"""What the app reads of a run under way is what the store says of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from openforge.errors import InfraError, UsageError
from openforge.store.lists import list_rollouts, list_runs
from openforge.store.transcript import read_transcript
from openforge_tui.reader import Followed, Reader
from tests.openforge.store.synthetic import SyntheticRun

LONG = "a text that is kept as a blob " * 100


@pytest.fixture
def run(store_root: Path) -> Iterator[SyntheticRun]:
    made = SyntheticRun(store_root)
    made.rollout()
    yield made
    made.close()


@pytest.fixture
def going_on(run):
    """A rollout with a long text, a refused host, a call in flight and another rollout beside it."""
    rollout = f"{run.run_id}.long.react.0"
    blob = run.recorder.blob(LONG.encode())
    run.state(rollout, "running")
    first = run.call(rollout)
    message = {"position": 2, "role": "user", "text_blob": blob}
    run.call(rollout, first, messages=[message, message | {"position": 4}])
    at = {"rollout_id": rollout, "attempt": 0}
    run.recorder.append("egress", **at, host="example.com", port=443, decision="refuse", rule="proxy-only")
    run.recorder.append("call.refused", **at, error_class="sealed")
    run.recorder.append("call.open", **at, call_id="c-open", dialect="chat", mode="train", stream=True)
    return rollout


def test_a_rollout_under_way_reads_as_from_the_whole_journal(run, going_on) -> None:
    found = Followed(run.run_dir).look().transcript(going_on)
    assert found == read_transcript(run.store_root, going_on)
    assert found.turns[1].messages[0]["text"] == LONG
    assert found.turns[2].call["state"] == "open"


def test_it_is_read_again_as_it_grows(run, going_on) -> None:
    followed = Followed(run.run_dir).look()
    assert len(followed.transcript(going_on).turns) == 3
    run.call(going_on)
    assert len(followed.look().transcript(going_on).turns) == 4


async def test_lists_are_the_same_object_until_something_changes(run) -> None:
    reader = Reader(run.store_root)
    first = await reader.rollouts(run.run_id)
    assert await reader.rollouts(run.run_id) is first
    run.rollout(task="next", sample=9)
    assert len(await reader.rollouts(run.run_id)) == len(first) + 1
    assert await reader.runs() == list_runs(run.store_root)
    run.end()
    ended = await reader.rollouts(run.run_id)
    assert ended == list_rollouts(run.store_root, run.run_id)
    assert await reader.rollouts(run.run_id) is ended
    assert await reader.runs() == list_runs(run.store_root)


async def test_what_cannot_be_read_is_told(run, monkeypatch) -> None:
    reader = Reader(run.store_root)
    with pytest.raises(UsageError, match="r0000000zzz is not in"):
        await reader.rollouts("r0000000zzz")

    def broken(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    with pytest.raises(InfraError, match="/some/file: Permission denied"):
        await reader.work(broken)


async def test_a_run_that_cannot_be_read_hides_no_other(run, store_root) -> None:
    run.end()
    other = SyntheticRun(store_root, "r0000000bbb")
    other.end()
    damaged = other.run_dir / "parquet"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{")
    rows = {row["run_id"]: row for row in await Reader(store_root).runs()}
    assert rows[run.run_id]["state"] == "done"
    assert rows["r0000000bbb"]["state"] == "unreadable"
    assert "manifest.json is damaged" in rows["r0000000bbb"]["policy"]


async def test_a_store_that_went_away_is_not_an_empty_one(run, store_root) -> None:
    reader = Reader(store_root)
    run.end()
    assert len(await reader.runs()) == 1
    store_root.rename(store_root.with_name("away"))
    with pytest.raises(InfraError, match="is gone"):
        await reader.runs()
