"""Harness manifests: placeholders, exit codes, and that every one that ships is complete and pinned."""

import re
from pathlib import Path

import pytest

from openforge.errors import ConfigError, UsageError
from openforge.harness import harness_roots, list_harnesses, load_harness

MANIFEST = """
name = "toy"
version = "1.2"
dialects = ["chat"]
[run]
argv = ["{bin}", "{instruction}"]
env = { URL = "{base_url}" }
exit_ok = [0, 7]
exit_meaning = { "2" = "gave up" }
[[files]]
path = ".toy/{model}.json"
template = "toy.json"
"""


def make_harness(root: Path, text: str = MANIFEST) -> Path:
    folder = root / "toy"
    folder.mkdir()
    (folder / "harness.toml").write_text(text)
    (folder / "toy.json").write_text('{"key": "{api_key}", "other": "{not_ours}"}')
    return folder


VALUES = {"bin": "/opt/toy", "instruction": "say {model} {}", "base_url": "http://x/v1", "model": "m", "api_key": "k"}


def test_placeholders_are_filled_once_and_braces_in_values_stay(tmp_path: Path) -> None:
    make_harness(tmp_path)
    launch = load_harness("toy", [tmp_path]).launch(VALUES)
    assert launch.argv == ("/opt/toy", "say {model} {}")
    assert launch.env == {"URL": "http://x/v1"}
    assert launch.files == {".toy/m.json": '{"key": "k", "other": "{not_ours}"}'}


def test_exit_codes_mean_what_the_manifest_says(tmp_path: Path) -> None:
    make_harness(tmp_path)
    manifest = load_harness("toy", [tmp_path])
    assert [manifest.failed(code) for code in (0, 7, 2)] == [False, False, True]
    assert manifest.exit_meaning(2) == "gave up"


def test_a_harness_whose_exit_code_lies_never_failed(tmp_path: Path) -> None:
    make_harness(tmp_path, MANIFEST.replace("[run]", "[run]\ntrust_exit_code = false"))
    assert not load_harness("toy", [tmp_path]).failed(2)


def test_an_unknown_key_is_an_error_with_file_and_key(tmp_path: Path) -> None:
    make_harness(tmp_path, MANIFEST.replace("exit_ok", "exit_okay"))
    with pytest.raises(ConfigError, match=r"harness\.toml: run\.exit_okay"):
        load_harness("toy", [tmp_path])


@pytest.mark.parametrize("path", ["../../x", "/etc/x", "a/../../x", ""])
@pytest.mark.parametrize("key", ['path = ".toy/{model}.json"', 'template = "toy.json"'])
def test_a_file_outside_the_home_or_the_harness_folder_is_refused(tmp_path: Path, key: str, path: str) -> None:
    make_harness(tmp_path, MANIFEST.replace(key, f'{key.split()[0]} = "{path}"'))
    with pytest.raises(ConfigError, match="must be a relative path"):
        load_harness("toy", [tmp_path])


def test_a_missing_template_is_named(tmp_path: Path) -> None:
    (make_harness(tmp_path) / "toy.json").unlink()
    with pytest.raises(ConfigError, match=r"toy\.json"):
        load_harness("toy", [tmp_path])


def test_an_unknown_harness_says_which_there_are(tmp_path: Path) -> None:
    make_harness(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_harness("tow", [tmp_path])
    assert "toy" in caught.value.hint


def test_h10_the_hash_changes_with_anything_in_the_folder(tmp_path: Path) -> None:
    folder = make_harness(tmp_path)
    before = load_harness("toy", [tmp_path]).content_hash()
    (folder / "toy.json").write_text("{}")
    assert load_harness("toy", [tmp_path]).content_hash() != before


@pytest.mark.parametrize("name", list_harnesses())
def test_every_harness_that_ships_is_pinned_and_has_an_image(name: str) -> None:
    manifest = load_harness(name)
    install = manifest.spec.install
    assert (manifest.root / "Dockerfile").is_file()
    assert all(re.search(r"(@|==)\d", package) for package in install.packages)
    assert install.kind == "none" or install.packages
    values = dict.fromkeys(("instruction", "model", "base_url", "api_key", "home", "work", "harness_dir", "bin"), "V")
    launch = manifest.launch(values)
    assert any("V" in argument for argument in launch.argv)


def test_a_harness_is_found_in_the_project_and_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "harness_images").mkdir()
    folder = make_harness(tmp_path / "harness_images")
    assert load_harness("toy", harness_roots(tmp_path)).root == folder
    assert load_harness(str(folder)).root == folder
    assert load_harness("react", harness_roots(tmp_path)).name == "react"
