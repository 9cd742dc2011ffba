"""When the train set counts as installed."""

import sys
from pathlib import Path

import pytest

from openforge_tui import train_set


def test_a_package_without_its_record_is_still_being_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "train.txt"
    listing.write_text("big-one==1.0\nother.one==2.0\n")
    for name in ("big_one-1.0", "other_one-2.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "big_one-1.0.dist-info" / "RECORD").touch()
    monkeypatch.setattr(train_set, "_listing", lambda: listing)
    monkeypatch.setattr(train_set, "_NEEDED", ())
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert train_set.missing() == ["other.one"]
    (tmp_path / "other_one-2.0.dist-info" / "RECORD").touch()
    assert train_set.missing() == []


def test_the_wait_after_the_last_package_says_what_it_is_for() -> None:
    assert train_set.how_far(142, 301) == "142 of 301 packages are in place"
    assert train_set.how_far(301, 301) == "301 of 301 packages are in place, compiling them"
