"""Where things are kept, and that half-built folders never appear there."""

from pathlib import Path

import pytest

from openforge.cache import building, cache_dir


def test_the_variable_wins_over_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENFORGE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "openforge"
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), building(tmp_path / "model") as build:
        (build / "no such folder" / "file").touch()
    assert list(tmp_path.iterdir()) == []
    with building(tmp_path / "model") as build:
        (build / "whole").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"]


def test_the_faster_of_two_builders_wins(tmp_path: Path) -> None:
    with building(tmp_path / "model") as slow:
        (slow / "slow").touch()
        with building(tmp_path / "model") as fast:
            (fast / "fast").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["fast"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
