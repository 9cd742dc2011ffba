import csv
import io
import json

import pyarrow.parquet as pq
import pytest

from openforge.store.saved import SAVED

pytestmark = pytest.mark.contract
MAY_BE_EMPTY = {"garbled", "recovery"}  # nothing is broken in the made-up run, and no tool speaks


def test_q04_a_question_is_answered_while_the_run_goes_on(run, typed, capfd) -> None:
    assert typed("sql", "SELECT harness, reward FROM rollouts ORDER BY harness", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out) == [
        {"harness": "codex", "reward": None},
        {"harness": "pi", "reward": 0.0},
        {"harness": "react", "reward": 1.0},
    ]


def test_without_a_question_it_says_what_can_be_asked(run, typed, capfd) -> None:
    assert typed("sql", "-o", "jsonl") == 0
    told = capfd.readouterr()
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert {"calls", "tokens", "samples", "blobs"} <= {row["view"] for row in rows}
    assert typed("sql") == 0
    told = capfd.readouterr()
    assert "One row a rollout: its latest attempt." in told.out
    assert "loss_mask" not in told.out
    assert all(name in told.err for name in SAVED)


def test_the_columns_of_one_view(run, typed, capfd) -> None:
    assert typed("sql", "--columns", "samples", "-o", "name") == 0
    assert "loss_mask" in capfd.readouterr().out.split()
    assert typed("sql", "--columns", "sample") == 2
    assert "did you mean samples?" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("question", "hint"),
    [
        ("SELECT rewrd FROM rollouts", "did you mean reward"),
        ("SELECT * FROM rollout", "did you mean rollouts"),
        ("SELECT harness, avg(reward) FROM rollouts", "GROUP BY ALL"),
    ],
)
def test_a_wrong_question_is_told_how_to_mend_it(run, typed, capfd, question: str, hint: str) -> None:
    assert typed("sql", question) == 2
    assert hint in capfd.readouterr().err


@pytest.mark.parametrize("name", SAVED)
def test_every_saved_question_is_answered(run, typed, capfd, name: str) -> None:
    assert typed("sql", "--saved", name, "-o", "csv") == 0
    told = capfd.readouterr()
    rows = list(csv.reader(io.StringIO(told.out)))
    assert len(rows) > (name not in MAY_BE_EMPTY)
    assert SAVED[name].sql in told.err
    assert SAVED[name].tells in told.err


def test_a_table_is_bounded_and_says_so_and_a_file_is_whole(run, typed, capfd) -> None:
    assert typed("sql", "SELECT * FROM range(600)") == 0
    told = capfd.readouterr()
    assert len(told.out.splitlines()) == 501
    assert "the first 500 rows" in told.err
    assert typed("sql", "SELECT * FROM range(600)", "-o", "csv") == 0
    assert len(capfd.readouterr().out.splitlines()) == 601
    assert typed("sql", "SELECT * FROM range(600)", "-o", "csv", "--limit", "2") == 0
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_parquet_keeps_types(run, typed, capfdbinary) -> None:
    assert typed("sql", "SELECT token_ids, reward FROM samples", "-o", "parquet") == 0
    table = pq.read_table(io.BytesIO(capfdbinary.readouterr().out))
    assert str(table.schema.field("token_ids").type) == "list<element: int32>"


def test_one_run_only(run, typed, capfd) -> None:
    assert typed("sql", "SELECT count(*) AS n FROM runs", "--run", "latest", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out) == [{"n": 1}]
    assert typed("sql", "SELECT 1", "--run", "nope") == 2


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("sql", "SELECT rewrd FROM rollouts"), 2, "did you mean reward?"),
        (("sql", "DROP TABLE calls"), 2, "only statements that read"),
        (("sql", "SELECT count(*) FROM range(100000) a, range(1000000) b", "--timeout", "1"), 4, "longer than 1 s"),
        (("sql", "--saved", "nope"), 2, "known: harnesses"),
    ],
)
def test_what_goes_wrong_is_told_on_stderr_with_its_exit_code(run, typed, capfd, words, code: int, told: str) -> None:
    assert typed(*words) == code
    printed = capfd.readouterr()
    assert told in printed.err
    assert printed.out == ""


def test_text_of_a_model_stays_text(run, typed, capfd) -> None:
    assert typed("sql", "SELECT detail FROM rollouts WHERE state = 'error'") == 0
    assert "\x1b" not in capfd.readouterr().out


def test_q22_large_integers_are_printed_whole(run, typed, capfd) -> None:
    assert typed("sql", "SELECT CAST(2 AS BIGINT) ** 60 :: BIGINT AS n, 1152921504606846977 AS m", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out)[0]["m"] == 2**60 + 1


def test_all_rows_to_a_file(run, typed, capfd, tmp_path) -> None:
    dest = tmp_path / "rows.csv"
    assert typed("sql", "SELECT range AS n, [range] AS l FROM range(20000)", "--to", str(dest), "-o", "json") == 0
    assert json.loads(capfd.readouterr().out) == [{"file": str(dest), "rows": 20000}]
    assert dest.read_text().splitlines()[:3] == ['"n","l"', '0,"[0]"', '1,"[1]"']
    assert typed("sql", "SELECT 1", "--to", str(dest)) == 2
    assert "there already" in capfd.readouterr().err
    assert typed("sql", "SELECT 1 AS one", "--to", str(dest), "--force") == 0
    assert dest.read_text().split() == ['"one"', "1"]
    assert typed("sql", "SELECT 1", "--to", str(tmp_path / "rows.xls")) == 2
    assert ".parquet, .csv, .jsonl" in capfd.readouterr().err
    assert typed("sql", "SELECT 1", "--to", str(tmp_path / "more.csv"), "--limit", "3") == 2
