"""Sandboxes as pods: one a rollout, walled in, ended by whoever ends first: the rollout, we, or its own deadline.

Everything is plain Kubernetes: pods, network policies, exec. One watch tells of all pods, and nothing asks for one
again and again. A sandbox is handed out once its agent has answered and found every door closed but the recorder's.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cluster import leases
from cluster.kube import Kube, KubeError, PodWatch
from cluster.runtimes import pod_spec, pod_state
from cluster.runtimes.base import Enforced, Layout, Order
from cluster.runtimes.pod_sandbox import PodSandbox
from cluster.states import AttemptError, ErrorClass
from cluster.task_image import RolloutImage
from cluster.workspace import SETUP_S
from openforge.config.models import Config

_STD = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_S, _SLACK_S, _AWAY_S = 300.0, 120.0, 120.0
_LEASE_S = 60
ImageOf = Callable[[Order], Awaitable[RolloutImage]]


@dataclass(frozen=True)
class Place:
    """Where pods go. `recorder_host` is this machine as pods see it, empty when the recorder is a pod as well;
    `requests` is what a pod claims of a node."""

    recorder_host: str
    requests: Mapping[str, str]
    pull_policy: str = "IfNotPresent"
    node_selector: Mapping[str, str] | None = None
    runtime_class: str = ""
    per_node: int = 0


class KubernetesRuntime:
    """See the module and `cluster.runtimes.base.Runtime`. `image_of` makes an order's image known to the cluster."""

    name = "kubernetes"

    def __init__(
        self,
        connect: Callable[[], Awaitable[Kube]],
        run_id: str,
        config: Config,
        place: Place,
        image_of: ImageOf,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._connect, self.run_id, self._config = connect, run_id, config
        self._place, self._image_of, self._say = place, image_of, say
        self.owner = secrets.token_hex(4)
        self.lease = (f"owner-{self.owner}", "")
        self._peer: Mapping[str, Any] = {"ipBlock": {"cidr": f"{place.recorder_host}/32"}}
        self._hosts: dict[int, str] = {}  # by shard, where it is not this machine
        self._ports: dict[int, tuple[int, int]] = {}
        self._walling = asyncio.Lock()
        self._forbidden: list[tuple[str, int]] = []
        self.room: int | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._living: asyncio.Task[None] | None = None
        self._opened = AsyncExitStack()
        self.kube: Kube
        self.watch: PodWatch
        self.enforced = Enforced(
            "pod",
            "",
            {
                "wall": "yes",
                "cpu": f"{config.sandbox.cpu:g} cores, by cgroup",
                "memory": "by cgroup",
                "disk": "within 2 s",
                "processes": "by cgroup",
                "network": "recorder only, by NetworkPolicy, proven in each pod",
            },
        )

    async def start(self) -> None:
        """InfraError when the cluster is away."""
        self.kube = await self._connect()
        self._opened.push_async_callback(self.kube.close)
        await self.kube.ensure_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
        await self.kube.apply_policy("rollouts", pod_spec.wall("", None), {})
        self._forbidden = [await self.kube.service_address()]
        await self._hold()
        self._opened.push_async_callback(self._leave)
        self._living = asyncio.create_task(self._live())
        await self._reap()
        if self._place.per_node:
            self.room = self._place.per_node * len(await self.kube.node_names(self._place.node_selector))
        self.watch = PodWatch(self.kube, f"{pod_spec.OWNER}={self.owner}")
        self._opened.push_async_callback(self.watch.close)
        await self.watch.start()

    async def close(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._opened.aclose()

    async def _leave(self) -> None:
        """Nothing of this run is left that would need a wall or an owner."""
        if self._living is not None:
            self._living.cancel()
            await asyncio.gather(self._living, return_exceptions=True)
        with suppress(KubeError):
            await self.kube.delete_policy(f"run-{self.run_id}")
            await leases.drop(self.kube, self.lease[0])

    async def _live(self) -> None:
        """Hold the lease for as long as this process lives: its pods are others' to remove once it has run out."""
        while True:
            await asyncio.sleep(_LEASE_S / 3)
            try:
                await self._hold()
            except KubeError as error:
                if 400 <= error.status < 500:  # else the API server is away, and so is who would remove something
                    self._say(f"the lease of this run's pods is not renewed, and others may remove them: {error}")

    async def _hold(self) -> None:
        name = self.lease[0]
        self.lease = (name, await leases.hold(self.kube, name, {pod_spec.RUN: self.run_id}, _LEASE_S))

    async def _reap(self) -> None:
        """Remove the pods of orchestrators that were killed, and of earlier ones of this run: their attempts are void.
        Nothing is removed unless both lists came, nor what has no owner: a probe of `openforge up`. Their leases go,
        and what belongs to those (a recorder with all that is its) goes with them."""
        listed, known = await self.kube.list_pods(f"{pod_spec.ROLE}=rollout"), await leases.listed(self.kube)
        live = {lease.name for lease in known if lease.live}
        for pod in listed["items"]:
            labels = pod["metadata"]["labels"]
            owner = labels.get(pod_spec.OWNER)
            if owner and (labels[pod_spec.RUN] == self.run_id or f"owner-{owner}" not in live):
                await self.kube.delete_pod(pod["metadata"]["name"], pod["metadata"]["uid"])
        for lease in known:
            run_id = lease.labels.get(pod_spec.RUN)
            if run_id and lease.name != self.lease[0] and (run_id == self.run_id or not lease.live):
                await leases.drop(self.kube, lease.name, lease.version)

    def meet(self, shard: int, address: str, peer: Mapping[str, Any]) -> None:
        """Where pods find a recorder, and what policies call all of the run's, when they are pods as well."""
        self._hosts[shard], self._peer = address, peer

    async def reach(self, shard: int, proxy_port: int, site_port: int) -> None:
        async with self._walling:
            self._ports[shard] = (proxy_port, site_port)
            ports = tuple(sorted({port for pair in self._ports.values() for port in pair}))
            wall = pod_spec.wall(self.run_id, (self._peer, ports))
            labels, owners = {pod_spec.RUN: self.run_id}, pod_spec.owned_by(self.lease)
            await self.kube.apply_policy(f"run-{self.run_id}", wall, labels, owners)

    def door(self, shard: int) -> tuple[str, tuple[int, int]]:
        """Where pods find the recorder of a shard; no ports where there is none, as when tasks are validated."""
        return self._hosts.get(shard, self._place.recorder_host), self._ports.get(shard, (0, 0))

    def layout(self, order: Order, image: RolloutImage) -> Layout:
        """A task that brings its own image has that image's programs first, its node and Python among them."""
        host, (proxy, site) = self.door(order.shard)
        path = f"/opt/node/bin:{_STD}"
        if order.task.dockerfile is not None:
            path = f"{image.env.get('PATH') or _STD}:/opt/node/bin"
        return Layout(
            work=image.work,
            home="/home/agent",
            temp="/tmp",
            path=f"{path}:/opt/openforge/bin",
            python="/opt/openforge/bin/python3",
            harness="/opt/harness",
            node="/opt/node",
            tests="/tests",
            orig="/orig",
            verifier="/logs/verifier",
            ca="/run/openforge/ca.pem",
            site=f"http://{host}:{site}",
            proxy=f"{host}:{proxy}",
        )

    @asynccontextmanager
    async def sandbox(self, order: Order) -> AsyncIterator[PodSandbox]:
        image = await self._image_of(order)
        name = pod_spec.pod_name(order.rollout_id, order.attempt, self.owner)
        deadline_s = _START_S + SETUP_S + order.wall_s + order.task.verifier_timeout_s + _SLACK_S
        pod = pod_spec.rollout_pod(
            name,
            image.name,
            order.settings,
            labels=pod_spec.pod_labels(self.run_id, self.owner),
            rollout_id=order.rollout_id,
            attempt=order.attempt,
            deadline_s=deadline_s,
            requests=self._place.requests,
            pull_policy=self._place.pull_policy,
            node_selector=self._place.node_selector or {},
            runtime_class=self._place.runtime_class,
            work=image.work,
            spread_by={pod_spec.OWNER: self.owner} if self._place.per_node else {},
        )
        try:
            await self.kube.create_pod(pod)
            uid = await self._running(name, image.name)
            sandbox = self._inside(order, name, uid, image)
            host, ports = self.door(order.shard)
            needed = [(host, port) for port in ports if port]
            await sandbox.prepare(self._forbidden, needed)
            yield sandbox
        finally:
            ending = asyncio.create_task(self._end(name))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            await asyncio.shield(ending)

    def _inside(self, order: Order, name: str, uid: str, image: RolloutImage) -> PodSandbox:
        return PodSandbox(self.kube, self.watch, order, name, uid, self.layout(order, image), image.env)

    async def _running(self, name: str, image: str) -> str:
        """Wait until both containers run; the pod's UID. AttemptError with what Kubernetes says instead."""
        try:
            async with asyncio.timeout(_START_S):
                pod = await self.watch.until(
                    name, lambda pod: pod is not None and (pod_state.runs(pod) or bool(pod_state.trouble(pod)))
                )
        except TimeoutError:
            pod = self.watch.pods.get(name)
            why = pod_state.unscheduled(pod) if pod else "the API server tells of no such pod"
            raise AttemptError(ErrorClass.SCHEDULE, f"pod {name} did not start in {_START_S:g} s: {why}") from None
        assert pod is not None
        if trouble := pod_state.trouble(pod):
            error_class, why = trouble
            raise AttemptError(error_class, f"pod {name} did not start: {why}", hint=f"image {image}")
        uid: str = pod["metadata"]["uid"]
        return uid

    async def _end(self, name: str) -> None:
        """Delete the pod, until the API server says that it is gone: it may be away for a while, or refuse to."""
        end_s = time.monotonic() + _AWAY_S
        while True:
            try:
                await self.kube.delete_pod(name)
                async with asyncio.timeout(30):
                    await self.watch.until(name, lambda pod: pod is None)
                break
            except (KubeError, TimeoutError) as error:
                refused = isinstance(error, KubeError) and error.status in (401, 403)
                if refused or time.monotonic() > end_s:
                    break  # its deadline ends it; the next orchestrator of this run removes it
                await _pause(1)
        self.watch.forget(name)


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)
