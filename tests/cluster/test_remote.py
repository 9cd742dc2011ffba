"""A cluster that was there before: what `openforge up` and `run` say of it, and how little they need to be allowed."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from registry import Registry
from remote_desk import gone, start

from cluster import docker, images, kind
from cluster.kube import Kube
from cluster.launch import Engine, engine_for, live_engine, orchestrate
from cluster.remote_check import ROLE
from cluster.remote_place import RemoteImages
from openforge.config.models import Config, Policy, Target
from openforge.errors import InfraError, UsageError

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]
SPACE = "somebodys"
RBAC = "rbac.authorization.k8s.io"


async def user(kube: Kube, cluster: kind.Cluster, folder: Path, rules: list[dict[str, Any]]) -> Path:
    """The kubeconfig of somebody who may do this in one namespace, and nothing else anywhere."""
    spaces = f"/api/v1/namespaces/{SPACE}/serviceaccounts"
    roles = f"/apis/{RBAC}/v1/namespaces/{SPACE}"
    who = {"kind": "ServiceAccount", "name": "somebody", "namespace": SPACE}
    role = {"apiGroup": RBAC, "kind": "Role", "name": "openforge"}
    await kube.ask("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}}, unless=(409,))
    await kube.ask("POST", spaces, {"metadata": {"name": "somebody"}}, unless=(409,))
    await kube.ask("DELETE", f"{roles}/roles/openforge", unless=(404,))
    await kube.ask("POST", f"{roles}/roles", {"metadata": {"name": "openforge"}, "rules": rules})
    bound = {"metadata": {"name": "openforge"}, "subjects": [who], "roleRef": role}
    await kube.ask("POST", f"{roles}/rolebindings", bound, unless=(409,))
    asked = {"spec": {"expirationSeconds": 3600}}
    told = await kube.ask("POST", f"{spaces}/somebody/token", asked)
    assert told is not None
    admin = cluster.kubeconfig.read_text()
    place = {key: re.search(f"{key}: (.*)", admin)[1] for key in ("server", "certificate-authority-data")}  # type: ignore[index]
    name = cluster.context
    made = {
        "clusters": [{"name": name, "cluster": place}],
        "users": [{"name": "somebody", "user": {"token": told["status"]["token"]}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "somebody"}}],
        "current-context": name,
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(made))
    return path


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, said = await asyncio.wait_for(process.communicate(), 180)
    return process.returncode, out.decode(), said.decode()


async def test_the_role_is_enough_and_a_lesser_one_is_told_by_name(
    far: Desk, kube: Kube, cluster: kind.Cluster, tmp_path: Path
) -> None:
    rules = json.loads(ROLE.read_bytes())["rules"]
    far.target = far.target.model_copy(update={"namespace": SPACE})
    far.model.commands = lambda session, n: ["echo 42 > answer.txt", None][n]
    try:
        lesser = [rule for rule in rules if rule["resources"] != ["secrets"]]
        kubeconfig = await user(kube, cluster, tmp_path, lesser)
        code, _, said = await ended(await start(far, "up", kubeconfig=kubeconfig))
        assert (code, "create secrets; delete secrets" in said, "role.json" in said) == (5, True, True), said
        kubeconfig = await user(kube, cluster, tmp_path, rules)
        code, out, said = await ended(await start(far, "up", kubeconfig=kubeconfig))
        assert code == 0, said
        told = json.loads(out)
        assert (told["namespace"], told["images"], told["walls"][:4]) == (SPACE, 3, "hold")
        assert images.recorder_name() in said  # what the nodes must have
        code, out, said = await ended(await start(far, "run", kubeconfig=kubeconfig))
        assert code == 0, said
        assert json.loads(out)[0]["reward"] == 1.0
    finally:
        await kube.ask("DELETE", f"/api/v1/namespaces/{SPACE}", unless=(404,))


async def test_a_cluster_that_is_not_there_or_not_ours_says_so(far: Desk, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("{}")
    for word, wanted, told in (
        ("up", 3, "no cluster to talk to"),
        ("run", 3, "no cluster to talk to"),
        ("down", 2, "does not make"),
    ):
        code, _, said = await ended(await start(far, word, kubeconfig=tmp_path / "empty"))
        assert (code, told in said) == (wanted, True), said


async def test_with_a_registry_images_are_pushed_once_and_named_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem := docker.problem():
        pytest.skip(f"no containers here: {problem}")
    registry, said = Registry(), []
    await registry.start()
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    local = images.sandbox_name().replace("sandbox", "test-push")
    monkeypatch.setattr(images, "ensure_sandbox", lambda say: local)  # which is big, and no other to push
    await asyncio.to_thread(docker.build, local, tmp_path, kind="test", say=said.append)
    try:
        named = RemoteImages(f"{registry.address}/team/", said.append)
        assert [await named.sandbox() for _ in range(2)] == [f"{registry.address}/team/{local}"] * 2
        assert len([line for line in said if line.startswith("docker push")]) == 1
        manifest = json.loads(registry.manifests[f"team/{local}"])
        assert {part["digest"] for part in [manifest["config"], *manifest["layers"]]} == set(registry.blobs)
        await registry.stop()
        with pytest.raises(InfraError, match="pushing"):
            await RemoteImages(registry.address, said.append).sandbox()
    finally:
        for name in (local, f"{registry.address}/team/{local}", f"{registry.address}/{local}"):
            await asyncio.to_thread(docker.docker, "image", "rm", name, step="after the test")


async def test_openforge_run_with_a_target_far_away(far: Desk, kube: Kube) -> None:
    far.model.commands = lambda session, n: ["echo 42 > answer.txt", None][n]
    process = await start(far)
    out, said = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, said.decode()
    [row] = json.loads(out)
    assert (row["rollouts"], row["done"], row["reward"], row["calls"]) == (1, 1, 1.0, 2)
    await gone(kube)


async def test_a_policy_of_the_commands_own_is_refused_too(tmp_path: Path) -> None:
    """As `harness check` has one, whatever the configuration says."""
    config = Config(target=Target(name="far", kind="kubernetes"), policy=Policy(base_url="http://10.0.0.1:8000/v1"))
    with pytest.raises(UsageError, match="this machine's own"):
        async with orchestrate(config, tmp_path / "store", Engine("http://127.0.0.1:1/v1", "0", asyncio.Event())):
            pass


async def test_a_trainers_policy_here_is_refused(tmp_path: Path) -> None:
    config = Config(target=Target(name="far", kind="kubernetes"), policy=Policy(base_url="http://10.0.0.1:8000/v1"))
    with pytest.raises(UsageError, match="trainer here"):
        async with orchestrate(config, tmp_path / "store", live_engine()):
            pass
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:8000/v1", "http://localhost:8000/v1", "http://[::1]:8/v1"])
async def test_a_policy_that_the_cluster_cannot_reach_is_refused_before_anything_is_made(url: str) -> None:
    config = Config(target=Target(name="far", kind="kubernetes"), policy=Policy(base_url=url))
    with pytest.raises(UsageError, match="far") as refused:
        async with engine_for(config, None, lambda text: None):
            pass
    assert "base_url" in refused.value.hint
