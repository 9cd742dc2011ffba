"""Trees that an agent built are measured and removed, however deep and closed they are."""

import os
from pathlib import Path

import pytest
from deep_tree import nested

from cluster.runtimes.folders import disk_bytes, own_tree, remove_tree


@pytest.mark.parametrize(("name", "depth"), [("d", 1500), ("n" * 250, 20)])
async def test_a_tree_too_deep_for_a_path_is_counted_given_away_and_removed(
    tmp_path: Path, name: str, depth: int
) -> None:
    with nested(tmp_path, name, depth) as innermost:
        file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=innermost)
        os.write(file, b"x" * 100_000)
        os.close(file)
    assert await disk_bytes([tmp_path], 20) > 100_000
    if os.geteuid() == 0:
        own_tree(tmp_path, 65534)
    assert remove_tree(tmp_path / name)
    assert os.listdir(tmp_path) == []


async def test_a_closed_folder_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "closed" / "sub").mkdir(parents=True)
    (tmp_path / "closed" / "sub" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "closed" / "sub").chmod(0)
    (tmp_path / "closed").chmod(0)
    assert await disk_bytes([tmp_path], 20) > 100_000
    assert remove_tree(tmp_path / "closed")
    assert os.listdir(tmp_path) == []


def test_a_link_is_removed_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    assert remove_tree(tmp_path / "link")
    assert os.listdir(tmp_path) == ["kept"]
