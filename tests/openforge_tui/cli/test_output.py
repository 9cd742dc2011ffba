"""Rows, formats, and text nobody may trust."""

import asyncio
import csv
import io
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforge.errors import CheckError, InfraError, OpenForgeError, TimeLimitError, UsageError
from openforge_tui.cli import output, settings

ROWS: list[dict[str, Any]] = [
    {"run_id": "r1", "calls": 3, "reward": 0.5, "tags": ["a"], "note": "one\ntwo"},
    {"run_id": "r2", "calls": None, "reward": float("nan"), "tags": [], "note": "\x1b[31m[bold]red\x1b]0;title\x07"},
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    settings.reset()


def printed(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().out


def test_table_lines_up_and_obeys_no_text(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, ["run_id", "calls", "note"])
    assert printed(capfd).splitlines() == ["run_id  calls  note", "r1          3  one⏎two", "r2             [bold]red"]


def test_json_keeps_values_and_order(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, ["reward", "run_id", "tags"], "json")
    assert json.loads(printed(capfd)) == [
        {"reward": 0.5, "run_id": "r1", "tags": ["a"]},
        {"reward": None, "run_id": "r2", "tags": []},
    ]


def test_jsonl_is_one_object_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, fmt="jsonl")
    assert [json.loads(line)["run_id"] for line in printed(capfd).splitlines()] == ["r1", "r2"]


def test_csv_quotes(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, ["run_id", "note", "tags"], "csv")
    rows = list(csv.reader(io.StringIO(printed(capfd))))
    assert rows[1] == ["r1", "one\ntwo", '["a"]']


def test_name_prints_the_first_column(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, ["run_id", "calls"], "name")
    assert printed(capfd) == "r1\nr2\n"


def test_parquet_round_trip(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.emit_arrow(pa.table({"id": [1, 2], "ids": [[1], [2, 3]]}), "parquet")
    assert pq.read_table(io.BytesIO(capfdbinary.readouterr().out)).to_pylist() == [
        {"id": 1, "ids": [1]},
        {"id": 2, "ids": [2, 3]},
    ]


def test_no_rows_is_still_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    output.emit([], ["run_id"])
    output.emit([], ["run_id"], "json")
    output.emit([], ["run_id"], "csv")
    assert printed(capfd).split() == ["run_id", "[]", "run_id"]


@given(st.text())
def test_plain_leaves_nothing_a_terminal_obeys(text: str) -> None:
    left = output.plain(text)
    assert not [c for c in left if (ord(c) < 32 and c not in "\t\n") or 127 <= ord(c) < 160]
    assert output.plain(left) == left


@pytest.mark.parametrize(("command", "code"), [(lambda: None, 0), (lambda: 5, 5)])
def test_what_a_command_returns(command: Callable[[], object], code: int) -> None:
    assert output.run_command(command) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OpenForgeError("failed"), 1),
        (UsageError("wrong"), 2),
        (InfraError("down"), 3),
        (TimeLimitError("late"), 4),
        (CheckError("found"), 5),
        (PermissionError(13, "Permission denied", "runs"), 3),
        (NotADirectoryError(20, "Not a directory", "/dev/null/runs"), 3),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 0),
        (SystemExit("text"), 1),
        (SystemExit(None), 0),
    ],
)
def test_how_a_command_ends(
    error: BaseException, code: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr(output, "_reader_left", lambda: 0)
    assert output.run_command(command) == code
    assert capfd.readouterr().out == ""


def test_an_error_names_the_next_command(capfd: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise InfraError("the recorder is gone", hint="openforge logs recorder")

    output.run_command(command)
    assert capfd.readouterr().err == "error: the recorder is gone\n  next: openforge logs recorder\n"


def test_an_unknown_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        output.run_command(lambda: 1 // 0)


async def _interrupted(times: int) -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)
    finally:
        for _ in range(times - 1):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(9):  # cleaning up takes a while
                await asyncio.sleep(0)
        output.say("cleaned up")


@pytest.mark.parametrize(("times", "cleaned"), [(1, True), (2, True), (3, False)])
def test_a_signal_lets_the_work_clean_up(times: int, cleaned: bool, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert output.run_command(lambda: output.run_async(_interrupted(times))) == 130
    said = capfd.readouterr().err
    assert ("cleaned up" in said) == cleaned
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_ends_plain_work_as_ctrl_c_does(capfd: pytest.CaptureFixture[str]) -> None:
    assert output.run_command(lambda: os.kill(os.getpid(), signal.SIGTERM)) == 130
