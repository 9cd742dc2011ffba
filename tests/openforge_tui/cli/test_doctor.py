import json


def test_fix_prints_the_commands_and_runs_none(typed, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    typed("doctor", "-o", "json")
    found = json.loads(capfd.readouterr().out)
    wanted = [one["next"] for one in found if one["state"] != "ok" and one["next"]]
    assert "openforge init" in wanted
    typed("doctor", "--fix")
    assert capfd.readouterr().out.splitlines() == wanted
    assert not (tmp_path / "openforge.toml").exists()
