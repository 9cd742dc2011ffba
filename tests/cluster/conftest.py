"""A real sandbox runtime, a real recorder in record mode, a scripted model server and harnesses that misbehave."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster import images, kind
from cluster.install import install
from cluster.kube import Kube
from cluster.runtimes import bwrap
from cluster.runtimes.process import ProcessRuntime
from openforge.config.models import Target
from openforge.harness import load_harness

sys.path.insert(0, str(Path(__file__).parent))
from desk import Desk
from model_server import ModelServer

NAMESPACE = "rollouts"


@pytest.fixture(scope="session")
def isolated() -> None:
    """Skip where this machine cannot isolate; CI can, so CI never skips."""
    problem = bwrap.probe()
    if problem:
        pytest.skip(problem)


@pytest.fixture
async def runtime(isolated: None) -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime("require")
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def kube(cluster: kind.Cluster) -> AsyncIterator[Kube]:
    made = await Kube.connect(cluster.kubeconfig, cluster.context, NAMESPACE)
    yield made
    await made.close()


@pytest.fixture
def pods(tmp_path: Path, model: ModelServer, cluster: kind.Cluster) -> Desk:
    """As `desk`, with rollouts in pods."""
    return Desk(tmp_path, model, Target(name="kind", kind="kind", cluster=cluster.name, namespace=NAMESPACE))


@pytest.fixture(scope="session")
def images_in_node(kind_cluster: kind.Cluster) -> None:
    """What a cluster without a registry has in its nodes."""
    react = load_harness("react")
    names = [
        images.ensure_sandbox(print),
        images.ensure_recorder(print),
        images.ensure_harness(react, install(react, print), print),
    ]
    kind.load(kind_cluster, names, print)


@pytest.fixture
async def far(
    tmp_path: Path, cluster: kind.Cluster, images_in_node: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    """As `pods`, with the test cluster as one that somebody else made: the recorder is in it, too, and the scripted
    model server where its pods reach it."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    model = ModelServer()
    await model.start(kind.host_address())
    target = Target(name="far", kind="kubernetes", context=cluster.context, namespace=NAMESPACE)
    yield Desk(tmp_path, model, target)
    await model.stop()


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def desk(tmp_path: Path, model: ModelServer) -> Desk:
    return Desk(tmp_path, model)
