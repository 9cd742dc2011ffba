"""The reader of Harbor's task layout: what it takes unchanged, what it refuses and how it says so."""

from pathlib import Path

import pytest

from openforge.errors import ConfigError, UsageError
from openforge.task import list_sets, load_tasks, read_task


def make_task(root: Path, name: str, toml: str = 'version = "1.0"\n') -> Path:
    folder = root / name
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "tests" / "test.sh").write_text("echo 1 > $REWARD_FILE\n")
    return folder


def test_harbor_tables_are_read_and_unknown_keys_in_them_pass(tmp_path: Path) -> None:
    verifier, agent = "[verifier]\ntimeout_sec = 9.5\nnew_key = 1\n", "[agent]\ntimeout_sec = 30\n"
    toml = f'[metadata]\ndifficulty = "easy"\n{verifier}{agent}[environment]\ncpus = 2\n'
    task = read_task(make_task(tmp_path / "set", "one", toml))
    assert (task.ref, task.instruction) == ("set/one", "Do it.")
    assert (task.verifier_timeout_s, task.agent_timeout_s) == (9.5, 30.0)
    assert task.metadata == {"difficulty": "easy"}


def test_an_unknown_key_in_our_own_table_names_file_and_key(tmp_path: Path) -> None:
    folder = make_task(tmp_path, "one", '[openforge]\nsetpu = "x"\n')
    with pytest.raises(ConfigError, match=r"task\.toml: openforge\.setpu"):
        read_task(folder)


@pytest.mark.parametrize("text", ["a\0b", "x" * 100_001, "é" * 50_001])
def test_an_instruction_that_no_program_can_be_handed_is_refused(tmp_path: Path, text: str) -> None:
    folder = make_task(tmp_path, "one")
    (folder / "instruction.md").write_text(text)
    with pytest.raises(ConfigError, match=r"instruction\.md cannot be handed to a program"):
        read_task(folder)


@pytest.mark.parametrize(
    ("setup", "says"), [("../outside.sh", "outside"), ("missing.sh", "does not exist"), ("/etc/passwd", "outside")]
)
def test_setup_must_be_a_file_of_the_task(tmp_path: Path, setup: str, says: str) -> None:
    (tmp_path / "outside.sh").write_text("")
    with pytest.raises(ConfigError, match=says):
        read_task(make_task(tmp_path, "one", f'[openforge]\nsetup = "{setup}"\n'))


@pytest.mark.parametrize("missing", ["instruction.md", "task.toml", "tests/test.sh"])
def test_a_missing_part_is_named(tmp_path: Path, missing: str) -> None:
    folder = make_task(tmp_path, "one")
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        read_task(folder)


def test_broken_toml_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        read_task(make_task(tmp_path, "one", "version = \n"))


def test_k23_a_name_that_no_label_could_carry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="A_B c"):
        read_task(make_task(tmp_path, "A_B c"))


def test_refs_name_sets_tasks_and_folders_and_each_task_comes_once(tmp_path: Path) -> None:
    for name in ("two", "one"):
        make_task(tmp_path / "set", name)
    other = make_task(tmp_path / "elsewhere", "three")
    tasks = load_tasks(["set/two", "set", str(other)], [tmp_path])
    assert [task.name for task in tasks] == ["two", "one", "three"]
    assert list_sets([tmp_path]) == ["elsewhere", "set"]


def test_a_ref_that_names_nothing_says_what_there_is(tmp_path: Path) -> None:
    make_task(tmp_path / "set", "one")
    with pytest.raises(UsageError) as caught:
        load_tasks(["sett"], [tmp_path])
    assert "set" in caught.value.hint


def test_two_tasks_of_one_name_cannot_share_a_run(tmp_path: Path) -> None:
    make_task(tmp_path / "a", "one")
    make_task(tmp_path / "b", "one")
    with pytest.raises(UsageError, match="two tasks are called 'one'"):
        load_tasks(["a", "b"], [tmp_path])


def test_content_hash_sees_bytes_names_and_the_executable_bit(tmp_path: Path) -> None:
    folder = make_task(tmp_path, "one")
    hashes = [read_task(folder).content_hash()]
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert read_task(folder).content_hash() == hashes[0]
    (folder / "tests" / "test.sh").chmod(0o755)
    hashes.append(read_task(folder).content_hash())
    (folder / "instruction.md").write_text("Do it now.\n")
    hashes.append(read_task(folder).content_hash())
    (folder / "tests" / "test.sh").rename(folder / "tests" / "other.sh")
    (folder / "tests" / "test.sh").write_text("")
    hashes.append(read_task(folder).content_hash())
    assert len(set(hashes)) == 4


def test_every_task_that_ships_can_be_read() -> None:
    for task in load_tasks(list_sets()):
        assert task.solution.is_file(), task.ref
        assert task.near_misses(), task.ref


def test_a_bare_name_finds_the_one_task_that_has_it(tmp_path: Path) -> None:
    for name in ("a/one", "a/two", "b/two"):
        make_task(tmp_path, name)
    assert [task.ref for task in load_tasks(["one"], [tmp_path])] == ["a/one"]
    with pytest.raises(UsageError) as told:
        load_tasks(["two"], [tmp_path])
    assert told.value.hint == "one of a/two, b/two"


@pytest.mark.parametrize("typed", ["count-line", "desk/cuont-lines"])
def test_an_unknown_task_is_told_the_nearest(tmp_path: Path, typed: str) -> None:
    make_task(tmp_path, "desk/count-lines")
    with pytest.raises(UsageError) as told:
        load_tasks([typed], [tmp_path])
    assert told.value.hint == "did you mean desk/count-lines?"
