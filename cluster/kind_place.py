"""Puts rollouts into a kind cluster of this machine: the runtime, and the images that its node must have.

The recorder stays on this machine: it listens where docker's network for kind ends, and pods reach it there.
"""

import asyncio

from cluster import docker, images, kind
from cluster.docker import Say
from cluster.kube import Kube
from cluster.runtimes.base import Order
from cluster.runtimes.kubernetes import KubernetesRuntime, Place
from cluster.states import AttemptError, ErrorClass
from openforge.config.models import Config
from openforge.errors import InfraError
from openforge.ids import RunId


class NodeImages:
    """Builds what a rollout needs and brings it into the node, each image once."""

    def __init__(self, cluster: kind.Cluster, say: Say) -> None:
        self._cluster, self._say = cluster, say
        self._ready: dict[str, str] = {}
        self._lock = asyncio.Lock()

    async def __call__(self, order: Order) -> str:
        """The name of the image, which is in the node by then. InfraError."""
        if order.task.setup is None:
            raise AttemptError(
                ErrorClass.IMAGE,
                f"the start files of {order.task.ref} are its Dockerfile's; pods take them from a setup script",
                hint="add [openforge] setup to its task.toml",
            )
        key = order.harness.content_hash()
        async with self._lock:
            if key not in self._ready:
                self._ready[key] = await asyncio.to_thread(self._bring, order)
        return self._ready[key]

    def _bring(self, order: Order) -> str:
        name = images.ensure_harness(order.harness, order.installed, self._say)
        kind.load(self._cluster, [name], self._say)
        return name


def kind_runtime(config: Config, run_id: RunId, say: Say) -> tuple[KubernetesRuntime, str]:
    """The runtime and the address at which the recorder must listen. InfraError when the cluster is not up."""
    docker.require()
    target = config.target
    cluster = kind.status(target.cluster)
    if cluster.state != "ready":
        raise InfraError(f"the kind cluster {target.cluster!r} is {cluster.state}", hint="openforge up --target kind")
    host = kind.host_address()
    place = Place(
        recorder_host=host,
        requests={"cpu": f"{config.sandbox.request_cpu:g}", "memory": config.sandbox.request_memory},
        node_selector=target.node_selector,
        runtime_class=target.runtime_class,
        per_node=target.per_node,
    )

    async def connect() -> Kube:
        return await Kube.connect(cluster.kubeconfig, cluster.context, target.namespace)

    return KubernetesRuntime(connect, run_id, config, place, NodeImages(cluster, say)), host
