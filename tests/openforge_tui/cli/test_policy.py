"""`openforge policy` as a person types it: streams, exit codes, next commands."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
Command = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.contract


@pytest.fixture
def openforge(tmp_path: Path) -> Command:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENFORGE_CACHE": str(tmp_path / "cache")}

    def run(*typed: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(tmp_path), "policy", *typed]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, env=env)

    return run


def test_list_says_what_is_made_and_where_it_goes(openforge: Command, tmp_path: Path) -> None:
    done = openforge("list", "-o", "json")
    rows = {row["policy"]: row for row in json.loads(done.stdout)}
    assert done.returncode == 0, done.stderr
    assert set(rows) == {"starter", "smollm2"}
    assert not any(row["made"] for row in rows.values())
    assert all(row["folder"].startswith(str(tmp_path / "cache")) for row in rows.values())


@pytest.mark.parametrize("verb", ["path", "serve"])
def test_what_is_not_made_says_how_to_make_it(openforge: Command, verb: str) -> None:
    done = openforge(verb, "starter")
    assert (done.returncode, done.stdout) == (2, "")
    assert "openforge policy make starter" in done.stderr


def test_a_name_without_a_recipe_is_a_usage_error(openforge: Command) -> None:
    done = openforge("make", "gpt-99")
    assert (done.returncode, done.stdout) == (2, "")
    assert "openforge policy list" in done.stderr


def test_path_prints_any_model_folder(openforge: Command, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    done = openforge("path", str(folder), "-o", "json")
    assert json.loads(done.stdout)["folder"] == str(folder)
