"""Two trainings on one machine: what veRL names its weight socket by differs from run to run."""

from typing import Any

import pytest

from trainer.verl_plugins import CPU_ENVIRONMENT, GPU_ENVIRONMENT

job: Any = pytest.importorskip("trainer.verl_plugins.job", reason="the train set is not installed")


def test_each_run_has_a_job_id_of_its_own_though_ray_gives_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.runtime_context import RuntimeContext

    monkeypatch.setattr(job, "_ray_job_id", lambda self: "01000000")
    context = RuntimeContext.__new__(RuntimeContext)
    seen = set()
    for run in ("r06aaaa", "r06bbbb"):
        monkeypatch.setenv("RAY_TMPDIR", f"/tmp/of-{run}")
        seen.add(context.get_job_id())
    monkeypatch.delenv("RAY_TMPDIR")
    assert seen == {"01000000-of-r06aaaa", "01000000-of-r06bbbb"}
    assert context.get_job_id() == "01000000"


@pytest.mark.parametrize("environment", [CPU_ENVIRONMENT, GPU_ENVIRONMENT])
def test_it_is_loaded_on_every_platform(environment: dict[str, str]) -> None:
    assert job.__name__ in environment["VERL_USE_EXTERNAL_MODULES"].split(",")
