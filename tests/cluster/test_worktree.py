"""What an agent may leave for the verifier."""

import os
from pathlib import Path

import pytest

from cluster.worktree import clean_work


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "data.txt").write_text("data")
    (tmp_path / "outer" / "secret").write_text("secret")
    return folder


@pytest.mark.parametrize("target", ["/tests/expected.txt", "../secret", "sub/../../secret", "/", "/proc/1/environ"])
def test_links_that_leave_the_folder_are_taken_out(work: Path, target: str) -> None:
    (work / "answer.txt").symlink_to(target)
    assert clean_work(work) == ["answer.txt"]
    assert not os.path.lexists(work / "answer.txt")


def test_a_link_that_leaves_through_another_link_is_taken_out(work: Path) -> None:
    (work / "here").symlink_to(".")
    (work / "answer.txt").symlink_to("sub/../here/../secret")
    assert clean_work(work) == ["answer.txt"]


def test_links_inside_stay_and_absolute_ones_mean_the_same_on_the_host(work: Path) -> None:
    (work / "relative").symlink_to("data.txt")
    (work / "sub" / "absolute").symlink_to("/app/data.txt")
    (work / "dangling").symlink_to("not-there-yet")
    assert clean_work(work) == []
    assert (work / "relative").read_text() == "data"
    assert (work / "sub" / "absolute").read_text() == "data"


def test_fifos_sockets_and_loops_are_taken_out(work: Path) -> None:
    os.mkfifo(work / "fifo")
    (work / "a").symlink_to("b")
    (work / "b").symlink_to("a")
    removed = clean_work(work)
    assert "fifo" in removed
    assert len(removed) == 2  # one end of the loop; the other then points at nothing


def test_names_that_are_not_text_do_not_stop_it(work: Path) -> None:
    os.symlink(b"/etc", os.fsencode(work) + b"/\xff\xfe")
    assert len(clean_work(work)) == 1
