"""Puts rollouts into a kind cluster of this machine: the runtime, and the images that its node must have.

The recorder stays on this machine: it listens where docker's network for kind ends, and pods reach it there.
"""

import asyncio
from collections import defaultdict

from cluster import docker, kind
from cluster.docker import Say
from cluster.images import ensure_harness
from cluster.kube import Kube
from cluster.runtimes.base import Order
from cluster.runtimes.kubernetes import KubernetesRuntime, Place
from cluster.states import AttemptError, ErrorClass
from cluster.task_image import RolloutImage, ensure_task, task_name
from openforge.config.models import Config
from openforge.errors import InfraError
from openforge.ids import RunId

_TRIES = 3


class NodeImages:
    """Builds what a rollout needs and brings it into the node, each image once."""

    def __init__(self, cluster: kind.Cluster, say: Say) -> None:
        self._cluster, self._say = cluster, say
        self._ready: dict[str, RolloutImage] = {}
        self._failed: dict[str, list[InfraError]] = defaultdict(list)
        self._lock = asyncio.Lock()

    async def __call__(self, order: Order) -> RolloutImage:
        """The image, which is in the node by then. AttemptError."""
        key = await asyncio.to_thread(_key, order)
        if key not in self._ready:  # else nothing is to be waited for
            async with self._lock:
                if key not in self._ready:
                    self._ready[key] = await self._try(key, order)
        return self._ready[key]

    async def _try(self, key: str, order: Order) -> RolloutImage:
        """A build may take minutes, and others wait for it: a task's that failed a few times stays failed."""
        failed = self._failed[key]
        if len(failed) < _TRIES or order.task.dockerfile is None:
            try:
                return await asyncio.to_thread(self._bring, order)
            except InfraError as error:
                failed.append(error)
        raise AttemptError(ErrorClass.IMAGE, failed[-1].summary, hint=failed[-1].hint) from failed[-1]

    def _bring(self, order: Order) -> RolloutImage:
        if order.task.dockerfile is None:
            image = RolloutImage(ensure_harness(order.harness, order.installed, self._say))
        else:
            image = ensure_task(order.task, order.harness, order.installed, self._say)
        kind.load(self._cluster, [image.name], self._say)
        return image


def _key(order: Order) -> str:
    if order.task.dockerfile is None:
        return order.harness.content_hash()
    return task_name(order.task, order.harness)


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

    return KubernetesRuntime(connect, run_id, config, place, NodeImages(cluster, say), say), host
