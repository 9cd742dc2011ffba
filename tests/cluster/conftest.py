"""A real sandbox runtime, a real recorder in record mode, a scripted model server and harnesses that misbehave."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster import kind
from cluster.kube import Kube
from cluster.runtimes import bwrap
from cluster.runtimes.process import ProcessRuntime
from openforge.config.models import Target

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


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def desk(tmp_path: Path, model: ModelServer) -> Desk:
    return Desk(tmp_path, model)
