"""The shape of the tree: what a stranger relies on when opening it."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("openforge", "proxy_addons", "cluster", "trainer", "openforge_tui", "benchmarks", "tests")
BANNED_NAMES = {"utils", "util", "helpers", "helper", "misc", "manager", "common"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root(?!/\.ssh)|home/\w+|Users/\w+|work/(?:main|shared)|tmp/\w+)/")


def tracked(*suffixes: str) -> list[Path]:
    """Files that git knows or would add; what is ignored is nobody's business here."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    return [ROOT / name for name in listing if name.endswith(suffixes) and (ROOT / name).is_file()]


SOURCES = [path for path in tracked(".py") if path.relative_to(ROOT).parts[0] in PACKAGES]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, "split it: one concept a file"
    assert path.stem not in BANNED_NAMES, "name it after what it does"
    if text.strip() and path.relative_to(ROOT).parts[0] != "tests":
        assert ast.get_docstring(ast.parse(text)), "a file starts by saying what it does"


def test_every_folder_of_sources_is_a_package_that_says_what_it_is() -> None:
    folders = {path.parent for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES[:5]}
    silent = [
        str(folder.relative_to(ROOT))
        for folder in folders
        if not (folder / "__init__.py").exists()
        or not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert not silent


def test_the_wheel_takes_every_file_of_its_packages() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": list(PACKAGES[:5])}, "include, exclude and the like would leave files out"
    ignored = subprocess.run(  # by git, and so by hatchling
        ["git", "ls-files", "-oi", "--exclude-standard", "--", *PACKAGES[:5]],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.split()
    assert [name for name in ignored if "__pycache__" not in name] == []
    read = {
        "openforge/store/page/page.html",
        "openforge_tui/app.tcss",
        "openforge_tui/web.html",
        "openforge_tui/web.js",
    }
    assert read <= {str(path.relative_to(ROOT)) for path in tracked(".html", ".js", ".tcss")}


def test_no_path_of_one_machine_is_written_down() -> None:
    files = tracked(".py", ".toml", ".md", ".sh", ".txt", ".json", ".jinja", "just", "justfile", "run", "lock")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line) and "machine path" not in line
    ]
    assert not found


def test_requirement_lists_are_pinned_and_name_no_index() -> None:
    for name in ("desk", "train-cpu", "train-gpu"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        assert all(re.match(r"[a-z0-9-]+==\S+", line) for line in lines), name


@pytest.mark.parametrize("train", ["train-cpu", "train-gpu"])
def test_the_desk_is_a_subset_of_the_train_set(train: str) -> None:
    here = {line.split(";")[0].strip() for line in (ROOT / "requirements" / f"{train}.txt").read_text().splitlines()}
    desk = (ROOT / "requirements" / "desk.txt").read_text().splitlines()
    for_linux = [line for line in desk if not re.search(r"win32|darwin|emscripten'$|'nt'", line) or "!=" in line]
    assert not {line.split(";")[0].strip() for line in for_linux} - here


def test_every_test_file_mirrors_a_folder_of_sources() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert not [str(folder) for folder in folders if not (ROOT / folder).is_dir()]


def test_the_case_table_names_tests_that_exist() -> None:
    table = (ROOT / "tests" / "cases.md").read_text(encoding="utf-8")
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", table)
    assert len(named) > 100
    assert not [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
