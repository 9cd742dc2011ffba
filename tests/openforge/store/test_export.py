import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from synthetic import SyntheticRun

from openforge.errors import InfraError, UsageError
from openforge.store.connect import query
from openforge.store.export import _parquet_folder, export, export_rows
from openforge.store.schema import BY_NAME, VIEWS, arrow_schema


@pytest.fixture
def run(make_run) -> SyntheticRun:
    made: SyntheticRun = make_run()
    for sample, reward in enumerate((1.0, 0.0, 1.0)):
        made.rollout(sample=sample, reward=reward)
    return made


def test_parquet_is_a_folder_with_a_file_for_each_view(run: SyntheticRun, tmp_path: Path) -> None:
    done = export(run.store_root, run.run_id, "parquet", tmp_path / "out")
    assert done.rows["calls.parquet"] == 9
    for view in VIEWS:
        if view.name != "unreadable":
            assert pq.read_table(tmp_path / "out" / f"{view.name}.parquet").schema.names == arrow_schema(view).names
    prompts = pq.read_table(tmp_path / "out" / "calls.parquet", columns=["call_id", "prompt_ids"]).to_pylist()
    assert {row["call_id"]: row["prompt_ids"] for row in prompts} == run.truth.prompts


def test_parquet_may_be_one_file_of_one_view(run: SyntheticRun, tmp_path: Path) -> None:
    assert export(run.store_root, run.run_id, "parquet", tmp_path / "samples.parquet").rows == {"samples.parquet": 3}
    done = export(run.store_root, run.run_id, "parquet", tmp_path / "t.parquet", views=["tokens"])
    assert done.rows == {"t.parquet": 3 * 240}
    with pytest.raises(UsageError, match="one view"):
        export(run.store_root, run.run_id, "parquet", tmp_path / "x.parquet", views=["tokens", "calls"])


def test_json_lines_hold_a_rollout_with_its_messages_each(run: SyntheticRun, tmp_path: Path) -> None:
    export(run.store_root, run.run_id, "jsonl", tmp_path / "out.jsonl")
    rollouts = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    assert [rollout["reward"] for rollout in rollouts] == [1.0, 0.0, 1.0]
    messages = rollouts[0]["messages"]
    assert [message["position"] for message in messages] == [0, 1, 2, 3, 4, 5]
    assert messages[1]["tool_calls"] == [{"id": "x1", "name": "shell", "arguments": '{"command": "ls"}'}]


@pytest.mark.contract
def test_q13_a_duckdb_file_opens_in_another_process_and_again(run: SyntheticRun, tmp_path: Path) -> None:
    dest = tmp_path / "run.duckdb"
    for _ in range(2):  # the second replaces the first
        export(run.store_root, run.run_id, "duckdb", dest)
        code = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).sql('FROM calls').shape[0])"
        assert subprocess.check_output([sys.executable, "-c", code, str(dest)], text=True).strip() == "9"
    con = duckdb.connect(str(dest), read_only=True)
    for view in VIEWS:
        if view.name != "unreadable":
            declared = [(column.name, column.type) for column in view.columns]
            assert [row[:2] for row in con.execute(f"DESCRIBE {view.name}").fetchall()] == declared
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("run")) == ["run.duckdb"]


def test_sft_rows_are_the_ids_as_recorded(run: SyntheticRun, tmp_path: Path) -> None:
    done = export(run.store_root, run.run_id, "sft", tmp_path / "sft.parquet")
    assert (done.rows, done.left_out) == ({"sft.parquet": 3}, {})
    table = pq.read_table(tmp_path / "sft.parquet")
    assert table.column_names[:6] == ["input_ids", "loss_mask", "rollout_id", "task", "harness", "reward"]
    for row in table.to_pylist():
        last = run.truth.calls[row["rollout_id"]][-1]
        assert row["input_ids"] == [*(run.truth.prompts[last] or []), *run.truth.answers[last]]
        assert sum(row["loss_mask"]) == 90
        assert len(row["loss_mask"]) == len(row["input_ids"])


def test_sft_says_what_it_left_out_and_why(run: SyntheticRun, tmp_path: Path) -> None:
    rollout = next(iter(run.truth.calls))
    run.recorder.append("sample.refused", rollout_id=rollout, attempt=0, call_ids=["c"], reason="bad_logprob")
    run.state(f"{run.run_id}.t.codex.0", "error", error_class="sandbox")  # type: ignore[arg-type]
    done = export(run.store_root, run.run_id, "sft", tmp_path / "sft.parquet", where="reward = 1")
    assert done.rows == {"sft.parquet": 2}
    assert done.left_out == {
        "does not satisfy reward = 1": 1,
        "no exact row: bad_logprob": 1,
        "rollout error without a sample": 1,
    }


def test_rows_can_be_chosen_one_by_one(run: SyntheticRun, make_run, tmp_path: Path) -> None:
    make_run("r0000000bbb").rollout()
    keys = [(row["rollout_id"], row["sample_id"]) for row in query(run.store_root, "FROM samples ORDER BY ALL")]
    runs = [run.run_id, "r0000000bbb"]
    assert export_rows(run.store_root, runs, [keys[3], keys[1]], tmp_path / "rows.parquet") == 2
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(row["rollout_id"], row["sample_id"]) for row in rows] == [keys[1], keys[3]]
    assert all(len(row["input_ids"]) == len(row["loss_mask"]) == 240 for row in rows)


@pytest.mark.parametrize(
    "where",
    ["reward = ", "rewrd = 1", "1 = (SELECT count(*) FROM read_text('/etc/passwd'))", "true) UNION (COPY x TO 'y'"],
)
def test_a_condition_can_only_read_and_a_failure_leaves_nothing(run: SyntheticRun, tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError):
        export(run.store_root, run.run_id, "sft", tmp_path / "out" / "sft.parquet", where=where)
    assert not (tmp_path / "out").exists()


def test_a_failed_export_leaves_what_was_there(run: SyntheticRun, tmp_path: Path) -> None:
    dest = tmp_path / "sft.parquet"
    dest.write_bytes(b"mine")
    with pytest.raises(UsageError):
        export(run.store_root, run.run_id, "sft", dest, where="nonsense")
    assert dest.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "duckdb", "sft"])
def test_a_full_disk_is_named_and_leaves_nothing(run: SyntheticRun, full_disk: Path, kind: str) -> None:
    before = sorted(full_disk.iterdir())
    dest = full_disk / "new" / "folder" / ("out" if kind == "parquet" else f"out.{kind}")
    with pytest.raises(InfraError, match=r"out.* cannot be written"):
        export(run.store_root, run.run_id, kind, dest)
    assert sorted(full_disk.iterdir()) == before


def test_of_files_that_belong_together_all_come_or_none(tmp_path: Path) -> None:
    dest = tmp_path / "new" / "out"
    con = duckdb.connect()
    con.execute("CREATE TABLE one AS SELECT 1 AS a")
    with pytest.raises(duckdb.CatalogException):
        _parquet_folder(con, ["one", "nope"], dest)
    assert not (tmp_path / "new").exists()
    dest.mkdir(parents=True)
    (dest / "mine.txt").write_text("")
    assert _parquet_folder(con, ["one"], dest).rows == {"one.parquet": 1}
    with pytest.raises(duckdb.CatalogException):
        _parquet_folder(con, ["one", "nope"], dest)
    assert sorted(file.name for file in dest.iterdir()) == ["mine.txt", "one.parquet"]
    assert [folder.name for folder in dest.parent.iterdir()] == ["out"]


def test_a_folder_that_may_not_be_written_is_named(run: SyntheticRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match="cannot be written"):
        export(run.store_root, run.run_id, "sft", tmp_path / "file" / "sft.parquet")


def test_one_run_or_all(run: SyntheticRun, make_run, tmp_path: Path) -> None:
    make_run("r0000000bbb").rollout()
    assert export(run.store_root, "r0000000bbb", "sft", tmp_path / "a.parquet").rows == {"a.parquet": 1}
    assert export(run.store_root, None, "sft", tmp_path / "b.parquet").rows == {"b.parquet": 4}


def test_unknown_formats_views_and_misplaced_conditions_are_refused(run: SyntheticRun, tmp_path: Path) -> None:
    for options in ({"fmt": "xml"}, {"fmt": "parquet", "views": ["nope"]}, {"fmt": "jsonl", "where": "true"}):
        with pytest.raises(UsageError):
            export(run.store_root, run.run_id, dest=tmp_path / "x", **options)  # type: ignore[arg-type]
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        export(run.store_root, run.run_id, "jsonl", tmp_path / "folder")


def test_exporting_changes_nothing_in_the_store(run: SyntheticRun, tmp_path: Path) -> None:
    before = sorted(run.store_root.rglob("*"))
    export(run.store_root, run.run_id, "parquet", tmp_path / "out")
    assert sorted(run.store_root.rglob("*")) == before
    assert set(BY_NAME) >= {"calls"}
    assert query(run.store_root, "SELECT count(*) AS n FROM calls") == [{"n": 9}]
