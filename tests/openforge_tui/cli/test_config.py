import json
from pathlib import Path


def test_init_writes_a_file_once(typed, tmp_path: Path, capfd) -> None:
    assert typed("config", "init") == 0
    written = (tmp_path / "openforge.toml").read_text()
    (tmp_path / "openforge.toml").write_text(written + "# mine\n")
    assert typed("config", "init") == 2
    assert (tmp_path / "openforge.toml").read_text().endswith("# mine\n")
    assert "already exists" in capfd.readouterr().err


def test_show_says_where_each_value_comes_from(typed, capfd) -> None:
    assert typed("config", "show", "-o", "json", "--set", "run.samples=7") == 0
    rows = {row["key"]: row for row in json.loads(capfd.readouterr().out)}
    assert rows["run.samples"] == {"key": "run.samples", "value": 7, "source": "flag run.samples"}
    assert rows["run.seed"]["source"] == "default"


def test_validate_names_file_line_and_key(typed, tmp_path: Path, capfd) -> None:
    (tmp_path / "openforge.toml").write_text("version = 1\n[run]\nsample = 1\n")
    assert typed("config", "validate") == 2
    told = capfd.readouterr()
    assert "openforge.toml:3: run.sample is not a known key; did you mean run.samples?" in told.err
    assert told.out == ""
    (tmp_path / "openforge.toml").write_text("version = 1\n[run]\nsamples = 1\n")
    assert typed("config", "validate", "-o", "json") == 0
    assert json.loads(capfd.readouterr().out)["valid"] is True


def test_schema_is_json(typed, capfd) -> None:
    assert typed("config", "schema") == 0
    assert json.loads(capfd.readouterr().out)["title"] == "openforge.toml"


def test_diff_prints_what_a_target_changes_and_says_what_is_missing_there(typed, tmp_path: Path, capfd) -> None:
    (tmp_path / "openforge.toml").write_text('version = 1\n[target.big]\nkind = "kubernetes"\ncontext = "c"\ngpu = 8\n')
    assert typed("config", "diff", "big", "-o", "json") == 0
    told = capfd.readouterr()
    rows = {row["key"]: row for row in json.loads(told.out)}
    assert (rows["target.gpu"]["here"], rows["target.gpu"]["there"]) == (0, 8)
    assert rows["target.gpu"]["set_there"] == "target big (openforge.toml:5)"
    assert "missing context: no context 'c'" in told.err
    assert "needs [policy] base_url" in told.err
    assert "not part of this version" in told.err
    assert typed("config", "diff", "local", "--from", "big", "-o", "json") == 0
    assert {row["key"]: row["there"] for row in json.loads(capfd.readouterr().out)}["target.gpu"] == 0
    assert typed("config", "diff", "moon") == 2
    assert "there is no target 'moon'" in capfd.readouterr().err
