"""Targets and what they change, as a person sees them; nothing is asked of a cluster and nothing is changed."""

from pathlib import Path

import pytest

from tests.openforge_tui.screens.conftest import SIZES

CONFIG = """version = 1
[run]
harnesses = ["react", "pi"]
[target.big]
kind = "kubernetes"
context = "gpu-cluster"
namespace = "rl"
queue = "main"
gpu = 8
[target.big.policy]
base_url = "http://policy.rl.svc:8000"
model = "Qwen/Qwen3-8B"
api_key_env = "POLICY_KEY"
[target.quick.run]
samples = 2
time_limit_s = 60
"""


@pytest.fixture
def targets(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (project / "openforge.toml").write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", "kubeconfig")  # there is none
    monkeypatch.setenv("OPENFORGE_CACHE", str(project / "cache"))
    monkeypatch.setenv("PATH", str(project / "bin"))
    return project


@pytest.mark.parametrize("size", SIZES)
async def test_the_targets_stand_beside_one_another(targets, open_desk, snapshot, size) -> None:
    async with open_desk(mode="promote", size=size) as app:
        await app.until_text("Applying a trainer to a remote cluster is not part")
        snapshot(app, "promote")


@pytest.mark.parametrize("size", SIZES)
async def test_enter_shows_what_a_target_changes_and_what_is_missing_there(targets, open_desk, snapshot, size) -> None:
    async with open_desk(mode="promote", size=size) as app:
        await app.press("enter")
        await app.until_text("no context 'gpu-cluster' in kubeconfig")
        snapshot(app, "promote-difference")
        await app.press("escape")
        await app.until_text("5 targets; this app is at local")


async def test_a_context_and_a_registry_that_are_there_are_not_missing(targets, open_desk) -> None:
    contexts = "contexts: [{name: gpu-cluster, context: {cluster: c, user: u}}]"
    (targets / "kubeconfig").write_text(f"apiVersion: v1\nkind: Config\n{contexts}\n")
    text = CONFIG.replace('queue = "main"', 'registry = "registry.example/rl"')
    (targets / "openforge.toml").write_text(text)
    async with open_desk(mode="promote") as app:
        await app.press("enter")
        await app.until_text("Nothing that can be known from here is missing")


@pytest.mark.parametrize("text", ["contexts: [", "just words"])
async def test_a_kubeconfig_that_is_none_is_told(targets, open_desk, text: str) -> None:
    (targets / "kubeconfig").write_text(text)
    async with open_desk(mode="promote") as app:
        await app.press("enter")
        await app.until_text("kubeconfig is no kubeconfig")


async def test_of_a_target_on_this_machine_docker_is_missed(targets, open_desk) -> None:
    async with open_desk(mode="promote") as app:
        await app.press("down", "enter")
        await app.until_text("docker: it does not answer: docker is not on PATH")
        assert "starter is not made" in app.text()
        assert "target.kind" in app.text()


async def test_a_change_is_copied_as_it_would_be_written(targets, open_desk, monkeypatch) -> None:
    async with open_desk(mode="promote") as app:
        copied: list[str] = []
        monkeypatch.setattr(app.desk, "copy", copied.append)
        await app.press("down", "down", "down", "enter")
        await app.until_text("2 values differ from local")
        await app.press("c")
        assert copied == ["run.samples = 2"]


async def test_a_file_that_breaks_while_the_app_is_open_is_told(targets, open_desk) -> None:
    async with open_desk(mode="promote") as app:
        (targets / "openforge.toml").write_text("version = 1\n[run]\nsample = 1\n")
        await app.press("ctrl+r")
        await app.until_text("openforge.toml:3: run.sample is not a known key")
        (targets / "openforge.toml").write_text(CONFIG)
        await app.press("ctrl+r")
        await app.until(lambda: "is not a known key" not in app.text())


async def test_a_target_elsewhere_marks_every_header(targets, open_desk, snapshot) -> None:
    async with open_desk(mode="promote", target="big") as app:
        assert app.view.header.has_class("-remote")
        assert "this app is at big (●)" in app.text()
        await app.press("2")
        assert app.view.header.has_class("-remote")
