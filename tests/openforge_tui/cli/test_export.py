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
    ):
        assert typed("export", "latest", "--format", fmt, "--to", name, "-o", "jsonl") == 0
        assert (tmp_path / name).exists()
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {"file": "samples.parquet", "rows": 2} in rows


@pytest.mark.contract
def test_sft_says_what_was_taken_and_what_was_not(run, typed, tmp_path: Path, capfd) -> None:
    assert typed("export", "--format", "sft", "--where", "reward = 1", "--to", "sft.parquet", "-o", "json") == 0
    told = capfd.readouterr()
    assert json.loads(told.out) == [{"file": "sft.parquet", "rows": 1}]
    assert "left out: 1 does not satisfy reward = 1" in told.err
    assert "left out: 1 no exact row: bad_logprob" in told.err
    assert pq.read_table(tmp_path / "sft.parquet").num_rows == 1


def test_wrong_use_is_told(run, typed, capfd) -> None:
    assert typed("export", "--format", "xml") == 2
    assert typed("export", "--view", "nope") == 2
    assert typed("export", "--where", "true") == 2
