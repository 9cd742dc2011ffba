from pathlib import Path

from openforge.config import load
from openforge.config.diff import Change, diff


def test_what_differs_is_named_with_both_values_and_who_set_them(tmp_path: Path) -> None:
    (tmp_path / "openforge.toml").write_text(
        'version = 1\n[run]\nsamples = 4\n[target.quick.run]\nsamples = 1\nharnesses = ["pi"]\n'
    )
    here, there = load(tmp_path, env={}), load(tmp_path, "quick", env={})
    assert diff(here, there) == [
        Change("run.harnesses", ["react"], ["pi"], "default", "target quick (openforge.toml:6)"),
        Change("run.samples", 4, 1, "openforge.toml:3", "target quick (openforge.toml:5)"),
    ]
    assert [change.key for change in diff(there, here)] == ["run.harnesses", "run.samples"]
    assert diff(there, there) == []


def test_a_key_that_only_one_has_is_none_in_the_other(tmp_path: Path) -> None:
    (tmp_path / "openforge.toml").write_text("version = 1\n[target.muon.trainer.verl]\nactor.lr = 1.5\n")
    [change] = diff(load(tmp_path, env={}), load(tmp_path, "muon", env={}))
    assert (change.key, change.here, change.there) == ("trainer.verl.actor.lr", None, 1.5)
    assert (change.set_here, change.set_there) == ("", "target muon (openforge.toml:3)")
