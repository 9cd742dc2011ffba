"""What an agent may leave for the verifier."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deep_tree import nested

from cluster.runtimes.folders import remove_tree
from cluster.worktree import clean_work, copy_tree


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "outer" / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "data.txt").write_text("data")
    (tmp_path / "outer" / "secret").write_text("secret")
    yield folder
    remove_tree(folder)  # some tests leave it deeper than pytest can remove


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


def test_a_chain_of_1500_links_does_not_end_the_run(work: Path) -> None:
    for n in range(1500):
        (work / f"l{n:04}").symlink_to(f"l{n + 1:04}")
    (work / "l1500").write_text("end")
    removed = clean_work(work)
    assert 0 < len(removed) < 1500  # none that the kernel would follow to the end
    assert (work / "l1461").read_text() == "end"


@pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("n" * 250, 20)])
def test_folders_too_deep_for_a_path_are_taken_out_and_the_rest_is_kept(work: Path, name: str, depth: int) -> None:
    with nested(work, name, depth) as innermost:
        os.symlink("/etc/passwd", "link", dir_fd=innermost)
    removed = clean_work(work)
    assert len(removed) == 1
    assert removed[0].startswith(name)
    assert (work / "data.txt").read_text() == "data"
    assert not [path for folder, names, files in os.walk(work) for path in (*names, *files) if path == "link"]


def test_links_among_folders_too_deep_do_not_stop_it(work: Path) -> None:
    deep = work
    for _ in range(8):
        deep = deep / ("n" * 250)
    deep.mkdir(parents=True)
    for n in range(20):
        (deep / f"{n}").symlink_to("/etc")
        (deep / f"{n}d").mkdir()
    (deep / ("n" * 100)).touch()
    removed = clean_work(work)
    assert str(deep.relative_to(work)) in removed
    assert not deep.exists()


def test_an_absolute_link_too_long_to_be_made_relative_goes(work: Path) -> None:
    folder = work / "/".join("d" * 300)
    folder.mkdir(parents=True)
    (folder / "link").symlink_to("/app/" + "x/" * 1900)
    assert clean_work(work) == [str((folder / "link").relative_to(work))]


def test_a_copy_keeps_links_as_links(work: Path, tmp_path: Path) -> None:
    (work / "link").symlink_to("/etc")
    (work / "data.txt").chmod(0o640)
    copy_tree(work, tmp_path / "copy" / "orig")
    assert os.readlink(tmp_path / "copy" / "orig" / "link") == "/etc"
    assert (tmp_path / "copy" / "orig" / "data.txt").stat().st_mode & 0o777 == 0o640
