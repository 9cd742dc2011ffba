from pathlib import Path


def test_a_wrong_manifest_does_not_hide_the_others(typed, tmp_path: Path, capfd) -> None:
    folder = tmp_path / "harness_images" / "mine"
    folder.mkdir(parents=True)
    (folder / "harness.toml").write_text("name = 1")
    assert typed("harness", "list", "-o", "name") == 0
    told = capfd.readouterr()
    assert told.out.split() == ["codex", "pi", "react"]
    assert "left out: " in told.err
    assert "harness.toml" in told.err
