"""The host works below a folder that a sandbox filled, and what was planted there leads it nowhere else."""

import os
from pathlib import Path

import pytest

from cluster.beneath import LeavesFolder, beneath, copy_beneath, write_beneath
from openforge.errors import InfraError


@pytest.fixture
def host(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "..", "a/.."])
def test_a_path_that_goes_up_or_is_absolute_is_refused(root: Path, path: str) -> None:
    with pytest.raises(LeavesFolder):
        beneath(root, path)


@pytest.mark.parametrize("path", [".cfg", ".cfg/settings.json", "a/b/c"])
def test_a_planted_link_does_not_get_the_hosts_files_written(root: Path, host: Path, path: str) -> None:
    (root / ".cfg").symlink_to(host)
    (root / "a").mkdir()
    (root / "a" / "b").symlink_to(host)
    with pytest.raises(LeavesFolder):
        write_beneath(root, path, "planted")
    assert os.listdir(host) == ["secret"]


def test_a_planted_link_does_not_get_the_hosts_folder_copied(root: Path, host: Path) -> None:
    (root / "tools").mkdir()
    (root / "tools" / "s").symlink_to(host)
    with pytest.raises(LeavesFolder):
        copy_beneath(root, "tools/s", ".agents/skills/s")
    with pytest.raises(LeavesFolder):
        copy_beneath(root, str(host), ".agents/skills/s")
    assert os.listdir(root) == ["tools"]


def test_a_planted_link_does_not_get_skills_put_on_the_host(root: Path, host: Path) -> None:
    (root / "s").mkdir()
    (root / ".agents").symlink_to(host)
    with pytest.raises(LeavesFolder):
        copy_beneath(root, "s", ".agents/skills/s")
    assert os.listdir(host) == ["secret"]


def test_files_and_folders_arrive_with_links_as_links(root: Path, host: Path) -> None:
    write_beneath(root, "a/b/c.json", "old and long")
    write_beneath(root, "a/b/c.json", "new")
    (root / "a" / "out").symlink_to(host / "secret")
    copy_beneath(root, "a", "x/a")
    assert (root / "x" / "a" / "b" / "c.json").read_text() == "new"
    assert (root / "x" / "a" / "out").is_symlink()


def test_a_fifo_in_the_way_does_not_hang_it(root: Path) -> None:
    os.mkfifo(root / "settings")
    with pytest.raises(OSError, match="No such device"):
        write_beneath(root, "settings", "text")


def test_what_cannot_be_copied_is_one_error(root: Path) -> None:
    (root / "s").mkdir()
    os.mkfifo(root / "s" / "fifo")
    with pytest.raises(InfraError, match="cannot be copied"):
        copy_beneath(root, "s", "t")
    with pytest.raises(LeavesFolder):
        copy_beneath(root, "s", "s/skills/s")
