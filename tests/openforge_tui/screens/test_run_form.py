"""The form that starts runs: what it shows while one types, and that what it starts is what it shows."""

from pathlib import Path
from typing import Any

import pytest

from openforge_tui.screens.run_form import RunForm
from tests.openforge_tui.screens.conftest import SIZES


@pytest.fixture
def policy(project: Path) -> str:
    """A model folder with a short name, named by the configuration."""
    folder = project / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = f'version = 1\n[policy]\nmodel = "{folder}"\n[run]\nsamples = 3\n[target.quick.run]\nsamples = 1\n'
    (project / "openforge.toml").write_text(config)
    return str(folder)


async def opened(app: Any, kind: Any = "run") -> RunForm:
    form = RunForm(kind)
    await app.desk.push_screen(form)
    await app.until(lambda: form.checked is not None)
    return form


async def typed(app: Any, form: RunForm, name: str, text: str) -> None:
    form.query_one(f"#{name}").value = text
    await app.pilot.pause()
    await app.until(lambda: form.checked is not None)


@pytest.mark.parametrize("size", SIZES)
async def test_the_form_shows_the_command_and_its_rollouts(project, open_desk, snapshot, size) -> None:
    (project / "m").mkdir()
    (project / "m" / "config.json").write_text("{}")
    async with open_desk(size=size) as app:
        form = await opened(app)
        await typed(app, form, "policy-model", "m")
        await typed(app, form, "run-tasks", "desk/count-lines,desk/fix-mean")
        await app.until_text("2 rollouts")
        snapshot(app, "run-form")
        await typed(app, form, "run-harnesses", "reac")
        await app.until_text("✗ no harness is called 'reac'")
        snapshot(app, "run-form-error")


async def test_read_from_the_configuration_it_starts_with_one_key(policy, open_desk, monkeypatch) -> None:
    async with open_desk(mode="overview") as app:
        started: list[Any] = []
        monkeypatch.setattr(app.desk, "start", lambda title, argv: started.append(list(argv)))
        await app.press("r")
        await app.until_text("36 rollouts")
        await app.press("enter")
        await app.until(lambda: bool(started))
        assert started == [
            ["run", "--target", "local", "--tasks", "desk", "--harness", "react", "--samples", "3", "--policy", policy]
        ]


async def test_what_is_wrong_is_not_started(policy, open_desk, monkeypatch) -> None:
    async with open_desk() as app:
        started: list[Any] = []
        monkeypatch.setattr(app.desk, "start", lambda title, argv: started.append(argv))
        form = await opened(app)
        await typed(app, form, "run-samples", "0")
        await app.press("ctrl+j")
        await app.until_text("✗ flag run.samples: run.samples should be greater than 0")
        assert "not as it stands" in app.text()
        assert (started, app.desk.screen) == ([], form)
        await app.press("escape")
        assert app.desk.screen is not form


async def test_another_target_brings_its_values_but_leaves_what_was_typed(policy, open_desk) -> None:
    async with open_desk() as app:
        form = await opened(app)
        await typed(app, form, "run-tasks", "desk/count-lines")
        await typed(app, form, "target", "quick")
        await app.until(lambda: form.values["run.samples"] == "1")
        assert form.values["run.tasks"] == "desk/count-lines"
        await app.until_text("1 rollout ")
        assert "--target quick --tasks desk/count-lines" in app.text()


async def test_a_recipe_brings_its_values(policy, open_desk) -> None:
    async with open_desk() as app:
        form = await opened(app, "train")
        await typed(app, form, "trainer-recipe", "tiny-cpu")
        await app.until(lambda: form.values["trainer.steps"] != "" and "--recipe tiny-cpu" in app.text())
        from openforge.config import load

        config = load(Path.cwd(), overrides={"trainer.recipe": "tiny-cpu"}).config
        await app.until(lambda: form.values["trainer.steps"] == str(config.trainer.steps))
        await app.until_text(f"{config.trainer.steps} steps of {config.trainer.groups} x {config.trainer.group_size}")


async def test_the_run_that_was_started_is_opened_once_it_has_begun(
    policy, run, open_desk, tmp_path: Path, monkeypatch
) -> None:
    """In place of a run that takes minutes, a job that prints what one prints when it begins."""
    run.end()
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "servers").mkdir(parents=True)
    (tmp_path / "cache" / "servers" / "one.log").write_text(f"run {run.run_id}: 3 rollouts; follow with …\n")
    async with open_desk(mode="overview") as app:
        form = await opened(app)
        start = app.desk.jobs.start
        app.desk.jobs.start = lambda title, argv: start(title, ["logs", "--policy"])
        await app.press("ctrl+j")
        await app.until(lambda: app.desk.screen is not form)
        await app.until(lambda: app.desk.current_mode == "runs" and len(app.desk.screen_stack) == 2)
        await app.until_text(run.run_id)


async def test_a_job_that_begins_no_run_is_followed_no_longer(policy, open_desk) -> None:
    async with open_desk(mode="overview") as app:
        await opened(app)
        start = app.desk.jobs.start
        app.desk.jobs.start = lambda title, argv: start(title, ["config", "validate", "--set", "run.smples=1"])
        await app.press("ctrl+j")
        await app.until(lambda: "job failed" in str([note.title for note in app.desk._notifications]))
        await app.until(lambda: not [one for one in app.desk.workers if one.group == "follow-run" and one.is_running])
        assert app.desk.current_mode == "runs"
