"""Puts rollouts, and their recorder, into a cluster that was there before: the one that a kubeconfig names.

Nothing in it has to reach this machine. It asks the policy under the address that the configuration gives, and gets
images from the registry of the target, or has them in its nodes already.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster import docker, images
from cluster.docker import Say
from cluster.install import install
from cluster.kube import Kube
from cluster.recorder_pods import RecorderPod, RecorderPods
from cluster.runtimes.base import Order
from cluster.runtimes.kubernetes import KubernetesRuntime, Place
from cluster.states import AttemptError, ErrorClass
from cluster.task_image import RolloutImage, ensure_task, task_name
from openforge.config.models import Config
from openforge.errors import InfraError, UsageError
from openforge.harness import HarnessManifest
from openforge.ids import RunId
from openforge.task import Task

_PUSH_S = 1800.0


class RemoteImages:
    """The images of a run under the names that the cluster knows them by, each one pushed once where there is a
    registry. Without one they are in the nodes, and nothing is built here but a task's own."""

    def __init__(self, registry: str, say: Say) -> None:
        self._registry, self._say = registry.rstrip("/"), say
        self._ready: dict[str, str] = {}
        self._own: dict[str, RolloutImage] = {}
        self._lock, self._building = asyncio.Lock(), asyncio.Lock()

    async def __call__(self, order: Order) -> RolloutImage:
        """That of a rollout. AttemptError."""
        try:
            if order.task.dockerfile is None:
                return RolloutImage(await self.harness(order.harness))
            return await self.task(order.task, order.harness)
        except InfraError as error:
            raise AttemptError(ErrorClass.IMAGE, error.summary, hint=error.hint) from error

    async def all(self, harnesses: Iterable[HarnessManifest], tasks: Iterable[Task]) -> list[str]:
        """Every image that a run with these harnesses and tasks needs."""
        own = [task for task in tasks if task.dockerfile]
        names = [await self.sandbox(), await self.recorder()]
        for manifest in harnesses:
            names += [await self.harness(manifest), *[(await self.task(task, manifest)).name for task in own]]
        return names

    async def task(self, task: Task, manifest: HarnessManifest) -> RolloutImage:
        """It is built here in any case: what its Dockerfile sets is asked of it."""
        key = task_name(task, manifest)
        async with self._building:
            if key not in self._own:
                installed = await asyncio.to_thread(install, manifest, self._say)
                self._own[key] = await asyncio.to_thread(ensure_task, task, manifest, installed, self._say)
        image = self._own[key]
        return replace(image, name=await self._named(image.name, lambda: image.name))

    async def harness(self, manifest: HarnessManifest) -> str:
        def ensure() -> str:
            return images.ensure_harness(manifest, install(manifest, self._say), self._say)

        return await self._named(images.harness_name(manifest), ensure)

    async def recorder(self) -> str:
        return await self._named(images.recorder_name(), lambda: images.ensure_recorder(self._say))

    async def sandbox(self) -> str:
        return await self._named(images.sandbox_name(), lambda: images.ensure_sandbox(self._say))

    async def _named(self, name: str, ensure: Callable[[], str]) -> str:
        async with self._lock:
            if name not in self._ready:
                self._ready[name] = await asyncio.to_thread(self._push, ensure) if self._registry else name
        return self._ready[name]

    def _push(self, ensure: Callable[[], str]) -> str:
        name = ensure()
        remote = f"{self._registry}/{name}"
        docker.docker("tag", name, remote, step=f"naming {remote}")
        self._say(f"docker push {remote}")
        docker.docker("push", "--quiet", remote, step=f"pushing {remote}", timeout_s=_PUSH_S)
        return remote


def check_policy(target: str, url: str, live: bool = False) -> None:
    """UsageError when a recorder in the target's cluster cannot reach the policy at `url`. `live`: it is that of a
    trainer here."""
    where = 'set [policy] base_url to an address that the cluster reaches, or take "--target kind"'
    if live:
        raise UsageError(
            f"the recorder of target {target!r} runs in its cluster, and cannot reach the policy of a trainer here",
            hint="train with --target local or kind",
        )
    if not url:
        raise UsageError(
            f"target {target!r} needs [policy] base_url: its recorder asks the policy from within the cluster",
            hint=where,
        )
    if _is_loopback(urlsplit(url).hostname or ""):
        raise UsageError(
            f"the policy is at {url}, this machine's own, and the recorder of target {target!r} runs in its cluster",
            hint=where,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def connecting(config: Config) -> Callable[[], Awaitable[Kube]]:
    """How to reach the target's cluster: by KUBECONFIG, else by the person's own file."""
    target = config.target

    async def connect() -> Kube:
        return await Kube.connect(None, target.context, target.namespace)

    return connect


def remote_runtime(config: Config, run_id: RunId, say: Say) -> KubernetesRuntime:
    images_of = RemoteImages(config.target.registry, say)
    return KubernetesRuntime(connecting(config), run_id, config, _place(config), images_of, say)


def recorders_of(
    runtime: KubernetesRuntime, config: Config, settings: Mapping[str, Any], log_of: Callable[[int], Path], say: Say
) -> Callable[[int], RecorderPod]:
    """What makes the recorders of a shard that the sandboxes of `runtime` use, one after the other."""
    pods = RecorderPods(runtime, _place(config), RemoteImages(config.target.registry, say).recorder, say)
    return lambda shard: pods.recorder(shard, settings, log_of(shard))


def _place(config: Config) -> Place:
    return Place(
        recorder_host="",
        requests={"cpu": f"{config.sandbox.request_cpu:g}", "memory": config.sandbox.request_memory},
        node_selector=config.target.node_selector,
        runtime_class=config.target.runtime_class,
        per_node=config.target.per_node,
    )
