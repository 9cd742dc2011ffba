import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest


def test_each_format_lands_where_it_was_told(run, typed, tmp_path: Path, capfd) -> None:
    for fmt, name in (
        ("parquet", "folder"),
        ("parquet", "samples.parquet"),
        ("jsonl", "a.jsonl"),
        ("duckdb", "a.duckdb"),
        ("html", "a.html"),
    ):
        assert typed("export", "latest", "--format", fmt, "--to", name, "-o", "jsonl") == 0
        assert (tmp_path / name).exists()
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {"file": "samples.parquet", "view": "samples", "rows": 2} in rows


@pytest.mark.contract
def test_sft_says_what_was_taken_and_what_was_not(run, typed, tmp_path: Path, capfd) -> None:
    assert typed("export", "--format", "sft", "--where", "reward = 1", "--to", "sft.parquet", "-o", "json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out) == [{"file": "sft.parquet", "view": "samples", "rows": 1}]
    assert "left out: 1 does not satisfy reward = 1" in told.err
    assert "left out: 1 no exact row: bad_logprob" in told.err
    assert pq.read_table(tmp_path / "sft.parquet").num_rows == 1


def test_wrong_use_is_told(run, typed, capfd) -> None:
    assert typed("export", "--format", "xml") == 2
    assert typed("export", "--view", "nope") == 2
    assert typed("export", "--where", "true") == 2
    assert typed("export", "all", "--html") == 2
    assert typed("export", "--html", "--format", "jsonl") == 2
    assert typed("export", "--limit", "3") == 2


def test_what_is_there_is_not_written_over_unless_forced(run, typed, tmp_path: Path, capfd) -> None:
    (tmp_path / "a.jsonl").write_text("precious")
    assert typed("export", "--format", "jsonl", "--to", "a.jsonl") == 2
    assert (tmp_path / "a.jsonl").read_text() == "precious"
    assert typed("export", "--format", "jsonl", "--to", "a.jsonl", "--force") == 0
    assert "rollout_id" in (tmp_path / "a.jsonl").read_text()


def test_a_page_says_what_it_leaves_out_and_what_lifts_it(run, typed, tmp_path: Path, capfd) -> None:
    assert typed("export", "--html", "--limit", "2", "-o", "json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out) == [{"file": f"{run.run_id}.html", "view": "rollouts", "rows": 2}]
    assert (
        f"left out: 1 of 3 rollouts, with the highest rewards: `openforge export {run.run_id} --html --limit 0`"
        in told.err
    )
    assert typed("export", "--html", "--limit", "0", "--force") == 0
    assert "left out" not in capfd.readouterr().err


@pytest.mark.contract
def test_no_rows_is_a_warning(run, typed, tmp_path: Path, capfd) -> None:
    assert typed("export", "--format", "sft", "--where", "reward > 9", "--to", "none.parquet") == 0
    assert "warning: what was written has 0 rows" in capfd.readouterr().err
