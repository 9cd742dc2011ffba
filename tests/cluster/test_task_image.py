"""Tasks that bring their own image: what it is called, where its agent works, and what is said when it cannot be."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from desk import Desk

from cluster import docker, task_image
from cluster.kube import Kube
from cluster.runtimes import pod_image
from cluster.runtimes.pod_spec import RUN
from cluster.runtimes.process import ProcessRuntime
from openforge.errors import InfraError
from openforge.harness import load_harness
from openforge.task import Task, read_task

OWN = Path(__file__).parents[1] / "harbor_tasks"
contract = [pytest.mark.contract, pytest.mark.timeout(600)]


def copy_of(name: str, folder: Path) -> Task:
    shutil.copytree(OWN / name, folder / name, symlinks=True)
    return read_task(folder / name)


def test_k22_its_image_is_named_by_every_file_of_its_environment(tmp_path: Path) -> None:
    task, react = copy_of("bare", tmp_path), load_harness("react")
    environment = task.root / "environment"
    names = [task_image.own_name(task)]
    assert names[0] == task_image.own_name(read_task(OWN / "bare"))

    def named() -> None:
        names.append(task_image.own_name(task))

    (environment / "names.txt").write_text("Bo\n")
    named()
    (environment / "names.txt").chmod(0o755)
    named()
    (environment / "deep").mkdir()
    (environment / "deep" / "new").write_text("")
    named()
    (environment / "deep" / "link").symlink_to("new")
    named()
    assert len(set(names)) == 5
    both = {task_image.task_name(task, react), task_image.task_name(task, load_harness("pi"))}
    (task.root / "instruction.md").write_text("Something else.")  # not of the image
    both.add(task_image.task_name(read_task(task.root), react))
    assert len(both) == 2


def test_a_name_is_one_that_docker_takes(tmp_path: Path) -> None:
    shutil.copytree(OWN / "bare", tmp_path / "a__-b_-")
    assert task_image.own_name(read_task(tmp_path / "a__-b_-")).startswith("openforge/task-a-b:")


def test_a_setup_script_makes_the_start_files_though_there_is_a_dockerfile(desk: Desk) -> None:
    task = desk.task()
    (task.root / "environment" / "Dockerfile").write_text("FROM scratch\n")
    assert read_task(task.root).dockerfile is None


@pytest.mark.parametrize(
    ("workdir", "work"),
    [
        (None, "/app"),
        ("", "/app"),
        ("/testbed/", "/testbed"),
        ("/srv/deep/x", "/srv/deep/x"),
        ("/opt/x", "/opt/x"),
        ("/", None),
        ("/opt", None),
        ("/home/agent", None),
        ("/tmp/x", None),
        ("/etc", None),
    ],
)
def test_the_work_folder_is_the_images_own(workdir: str, work: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "image", lambda name: {"Config": {"WorkingDir": workdir, "Env": ["A=b=c", "PATH=/x"]}})
    task = read_task(OWN / "bare")
    if work is None:
        with pytest.raises(InfraError, match="harbor_tasks/bare has WORKDIR"):
            task_image.work_folder(task, "x")
    else:
        assert task_image.work_folder(task, "x") == work
    assert task_image.environment("x") == {"A": "b=c", "PATH": "/x"}


def test_of_a_failed_build_the_step_is_told_that_failed() -> None:
    said = "building x: docker ended\nDEPRECATED\nStep 1/2 : FROM y\nStep 2/2 : RUN z\n\x1b[91mno z\x1b[0m"
    assert task_image._from_last_step(said) == "building x: docker ended\nStep 2/2 : RUN z\nno z"
    assert (
        task_image._from_last_step("building x: docker ended\n#5 ERROR: z") == "building x: docker ended\n#5 ERROR: z"
    )


def test_a_rollouts_user_gets_a_name_where_the_image_has_none(tmp_path: Path) -> None:
    pod_image.name_user(tmp_path / "etc")
    assert (tmp_path / "etc" / "passwd").read_text().splitlines()[1] == "agent:x:1000:1000::/home/agent:/bin/sh"
    told = "root:x:0:0::/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/ash"
    (tmp_path / "etc" / "passwd").write_text(told)
    pod_image.name_user(tmp_path / "etc")
    assert (tmp_path / "etc" / "passwd").read_text() == told
    assert (tmp_path / "etc" / "group").read_text().count("agent") == 1


@pytest.mark.contract
async def test_a_process_is_told_that_it_cannot_have_an_image(desk: Desk, runtime: ProcessRuntime) -> None:
    async with desk.orchestrator() as orchestrator:
        [rollout] = await orchestrator.run_all([desk.spec(read_task(OWN / "bare"))])
    assert (rollout.state, rollout.result.error_class) == ("error", "image")
    assert "environment/Dockerfile" in rollout.result.detail


class TestInPods:
    pytestmark = contract

    async def test_what_an_agent_sees_of_an_image_that_is_not_ours(self, pods: Desk) -> None:
        probe = (
            "id -un; pwd; ls; cat link; echo $GREETING; type cp; type bash; type python3; "
            "echo x > /srv/x; echo y > y && cat y; echo home > ~/z && cat ~/z; ls /tests"
        )
        pods.model.commands = lambda session, n: probe if n == 0 else None
        async with pods.orchestrator() as orchestrator:
            [rollout] = await orchestrator.run_all([pods.spec(read_task(OWN / "bare"))])
        assert (rollout.state, rollout.result.grade.reward) == ("done", 0.0), rollout.result
        lines = pods.model.said[-1].splitlines()
        assert lines[:5] == ["agent", "/srv/desk", "link", "names.txt", "Noor"]
        assert "good day" in lines
        assert "cp is /bin/cp" in lines
        assert "bash is /opt/openforge/bin/bash" in lines  # which a harness's shell tool may count on
        assert "python3 is /opt/openforge/bin/python3" in lines
        assert any("Read-only file system" in line for line in lines)
        assert {"y", "home", "ls: /tests: No such file or directory"} <= set(lines)

    async def test_a_task_has_its_own_programs_first_and_the_harness_its_own_python(self, pods: Desk) -> None:
        """shop's image has a python3 that only fails; react runs, and sees that one when it asks for python3."""
        probe = "python3; bash -lc 'type total'; mkfifo /tmp/p && ls -F deep/er; total orders.csv > total.txt"
        pods.model.commands = lambda session, n: probe if n == 0 else None
        async with pods.orchestrator() as orchestrator:
            [rollout] = await orchestrator.run_all([pods.spec(read_task(OWN / "shop"))])
        assert (rollout.state, rollout.result.grade.reward) == ("done", 1.0), rollout.result
        assert pods.model.said[-1].splitlines() == [
            "this is the Python of the task, which no harness runs by",
            "total is /opt/shop/bin/total",
            "pipe|",
        ]

    @pytest.mark.parametrize(
        ("dockerfile", "said"),
        [
            ("FROM openforge/base:bookworm\nRUN echo this goes wrong >&2; exit 7\n", ["this goes wrong", "7"]),
            ("FROM openforge/base:bookworm\nCOPY nothing.txt /\n", ["nothing.txt"]),
            ("FROM openforge/base:bookworm\nWORKDIR /\n", ["WORKDIR /"]),
        ],
    )
    async def test_an_image_that_cannot_be_is_an_error_that_says_why(
        self, pods: Desk, kube: Kube, tmp_path: Path, dockerfile: str, said: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, builds = copy_of("bare", tmp_path), 0
        (task.root / "environment" / "Dockerfile").write_text(dockerfile)
        build = docker.build

        def counted(name: str, *given: Any, **more: Any) -> None:
            nonlocal builds
            builds += name.startswith("openforge/task-")
            build(name, *given, **more)

        monkeypatch.setattr(docker, "build", counted)
        async with pods.orchestrator(retries=1) as orchestrator:
            specs = [pods.spec(task, sample=n) for n in range(3)]
            rollouts = await orchestrator.run_all(specs)
        assert {(r.state, r.result.error_class) for r in rollouts} == {("error", "image")}
        assert builds <= 3  # of six attempts
        for rollout in rollouts:
            for word in [task.ref, *said]:
                assert word in rollout.result.detail
        assert (await kube.list_pods(f"{RUN}={pods.run_dir.name}"))["items"] == []

    async def test_several_containers_are_refused_by_name(self, pods: Desk, tmp_path: Path) -> None:
        task = copy_of("bare", tmp_path)
        (task.root / "environment" / "docker-compose.yaml").write_text("services: {}\n")
        async with pods.orchestrator() as orchestrator:
            [rollout] = await orchestrator.run_all([pods.spec(task)])
        assert (rollout.state, rollout.result.error_class) == ("error", "image")
        assert "docker-compose.yaml" in rollout.result.detail
