"""What goes wrong on a simulated cluster, at the times that its fleet file says."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from cluster.kube import Kube, KubeError, PodWatch
from cluster.runtimes import pod_state
from cluster.runtimes.pod_spec import AGENT
from cluster.sim import control_plane
from cluster.sim.control_plane import API, ControlPlane
from cluster.sim.fleet_file import Fault

_LOST = {"key": "openforge.dev/lost", "effect": "NoExecute"}


class Faults:
    """Each fault is a task that waits for its time. Closed, what is still away comes back."""

    def __init__(
        self, plane: ControlPlane, kube: Kube, watch: PodWatch, faults: Sequence[Fault], say: Callable[[str], None]
    ) -> None:
        self._plane, self._kube, self._watch, self._faults, self._say = plane, kube, watch, faults, say
        self._random = random.Random(0)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Their clock runs from now on. Idempotent."""
        self._tasks = self._tasks or [asyncio.create_task(self._happen(fault)) for fault in self._faults]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _happen(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        if fault.kind == "api-down":
            self._say(f"fault: the API server is killed, for {fault.for_s:g} s")
            control_plane.kill(self._plane, API)
            try:
                await asyncio.sleep(fault.for_s)
            finally:
                control_plane.revive(self._plane, API)
        elif fault.kind == "node-lost":
            await self._lose_nodes(fault)
        else:
            running = sorted(name for name, pod in self._watch.pods.items() if pod_state.runs(pod))
            chosen = self._share(running, fault.share)
            self._say(f"fault: {fault.kind}, {len(chosen)} of {len(running)} pods")
            await asyncio.gather(*(self._hit(fault, name) for name in chosen))

    async def _hit(self, fault: Fault, name: str) -> None:
        try:
            if fault.kind == "delete":
                await self._kube.delete_pod(name)
            elif fault.kind == "evict":
                told = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
                await self._kube.patch_pod_status(name, told)
            else:
                killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
                statuses = [
                    {**status, "state": killed, "ready": False} if status["name"] == AGENT else status
                    for status in self._watch.pods[name]["status"]["containerStatuses"]
                ]
                await self._kube.patch_pod_status(name, {"containerStatuses": statuses})
        except KubeError as error:
            if error.status != 404:  # it ended by itself meanwhile
                self._say(f"fault: {fault.kind} of {name} failed: {error.summary}")

    async def _lose_nodes(self, fault: Fault) -> None:
        chosen = self._share(sorted(await self._kube.node_names()), fault.share)
        self._say(f"fault: {len(chosen)} nodes are lost, for {fault.for_s:g} s")
        await self._taint(chosen, [_LOST])
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            await asyncio.shield(self._taint(chosen, []))

    async def _taint(self, names: Sequence[str], taints: list[dict[str, Any]]) -> None:
        """The controllers delete the pods of a node that is so marked, and none is put there."""
        await asyncio.gather(*(self._kube.taint_node(name, taints) for name in names))

    def _share(self, names: list[str], share: float) -> list[str]:
        return self._random.sample(names, math.ceil(share * len(names)))
