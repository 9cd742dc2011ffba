"""What doctor concludes from facts; the facts of this machine are only asked to be there."""

from dataclasses import replace
from pathlib import Path

import pytest

from openforge.config import load
from openforge.config.models import Target
from openforge_tui.machine import GIB, Finding, Machine, findings, survey

CONFIG = load(Path(__file__).parent, env={}).config
GOOD = Machine(
    python=(3, 12, 1),
    programs={"git": "/bin/git", "bwrap": "/bin/bwrap", "npm": "/bin/npm", "uv": None},
    bwrap_error=None,
    cores=2,
    memory_bytes=16 * GIB,
    disk_free_bytes=50 * GIB,
    disk_path="/store",
    store_path="/store",
    store_error=None,
    gpu=False,
    train_missing=(),
    harnesses={"react": ("none", True), "pi": ("npm", True)},
    model="starter",
    model_place="/cache/starter",
    base_url="",
)


def found(machine: Machine, check: str, isolation: str = "auto") -> Finding:
    config = CONFIG.model_copy(update={"sandbox": CONFIG.sandbox.model_copy(update={"isolation": isolation})})
    return next(finding for finding in findings(machine, config) if finding.check == check)


def test_a_good_machine_lacks_nothing() -> None:
    assert {finding.state for finding in findings(GOOD, CONFIG)} == {"ok"}


@pytest.mark.parametrize(
    ("change", "check", "state", "next_command"),
    [
        ({"python": (3, 11, 9)}, "python", "missing", "OPENFORGE_PYTHON"),
        ({"python": (3, 14, 0)}, "python", "missing", "OPENFORGE_PYTHON"),
        ({"programs": {**GOOD.programs, "bwrap": None}}, "sandbox", "note", "apt-get install bubblewrap"),
        ({"bwrap_error": "no permissions"}, "sandbox", "note", "docs/adr"),
        ({"programs": {**GOOD.programs, "npm": None}}, "npm", "note", ""),
        ({"memory_bytes": 4 * GIB}, "memory", "note", "concurrency"),
        ({"memory_bytes": 2 * GIB}, "memory", "missing", "concurrency"),
        ({"disk_free_bytes": GIB}, "disk", "missing", "/store"),
        ({"store_error": "Read-only file system"}, "store", "missing", "--store"),
        ({"harnesses": {"pi": ("npm", False)}}, "harness pi", "note", "openforge harness install pi"),
        ({"harnesses": {"pie": None}}, "harness pie", "missing", "openforge harness list"),
        ({"train_missing": ("torch",)}, "train set", "note", "./just train-set"),
        ({"model_place": None}, "policy", "note", "openforge policy make starter"),
        ({"base_url": "http://gpu:8000"}, "policy", "ok", ""),
    ],
)
def test_what_is_lacking_names_the_next_command(
    change: dict[str, object], check: str, state: str, next_command: str
) -> None:
    finding = found(replace(GOOD, **change), check)  # type: ignore[arg-type]
    assert finding.state == state
    assert next_command in finding.next


@pytest.mark.parametrize(
    ("pods", "last", "next_command"),
    [
        (("docker is not on PATH", ""), ("docker", "missing"), "start Docker"),
        (("", "absent"), ("cluster", "missing"), "openforge up"),
        (("", "ready"), ("cluster", "ok"), ""),
    ],
)
def test_of_pods_the_target_kind_needs_docker_and_a_cluster(
    pods: tuple[str, str], last: tuple[str, str], next_command: str
) -> None:
    config = load(Path(__file__).parent, "kind", env={}).config
    told = [one for one in findings(replace(GOOD, pods=pods), config) if one.check in ("docker", "cluster")][-1]
    assert (told.check, told.state) == last
    assert told.next.startswith(next_command)
    assert not [one for one in findings(GOOD, CONFIG) if one.check == "docker"]


def test_a_cluster_that_was_there_before_is_named_with_the_command_that_tries_it() -> None:
    far = CONFIG.model_copy(update={"target": Target(name="far", kind="kubernetes", context="big")})
    [told] = [one for one in findings(GOOD, far) if one.check == "cluster"]
    assert (told.state, told.next, told.found.startswith("big")) == ("note", "openforge up --target far", True)


def test_npm_is_needed_when_a_harness_that_comes_from_it_is_not_installed() -> None:
    programs = {**GOOD.programs, "npm": None}
    assert found(replace(GOOD, programs=programs, harnesses={"pi": ("npm", False)}), "npm").state == "missing"


def test_required_isolation_makes_bubblewrap_needed() -> None:
    machine = replace(GOOD, programs={**GOOD.programs, "bwrap": None})
    assert found(machine, "sandbox", "require").state == "missing"
    assert found(machine, "sandbox", "off").state == "note"


def test_this_machine_can_be_surveyed(tmp_path: Path) -> None:
    machine = survey(CONFIG, tmp_path)
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
    assert machine.store_error is None
    assert list(tmp_path.iterdir()) == [], "looking must not leave anything"
