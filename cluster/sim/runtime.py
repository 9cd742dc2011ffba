"""Rollouts on a simulated cluster: everything of a pod's life is real but what runs inside it.

The orchestrator, the recorder, the API server, the scheduler and the watch are the real ones. A simulated harness takes
the time that the fleet file says and asks for one model call, which a scripted policy answers; its reward is drawn.
"""

import asyncio
import base64
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from cluster.kube import Kube
from cluster.runtimes.base import Enforced, Order
from cluster.runtimes.kubernetes import KubernetesRuntime, Place
from cluster.runtimes.pod_sandbox import PodSandbox
from cluster.sim import control_plane
from cluster.sim.control_plane import ControlPlane
from cluster.sim.faults import Faults
from cluster.sim.fleet_file import DEFAULT, Fleet, Rollouts, read_fleet
from cluster.task_image import RolloutImage
from openforge.config.models import Config
from openforge.errors import InfraError
from openforge.ids import RunId

HOST = "127.0.0.1"
_CALL_S = 60.0


class SimulatedSandbox(PodSandbox):
    """A pod whose containers answer by themselves. Its end is as real as any pod's: the watch tells of it."""

    def begin(self, plan: Rollouts, http: aiohttp.ClientSession) -> None:
        """How its harness behaves. The same rollout of another run goes the same way."""
        self._plan, self._http = plan, http
        name = self._order.rollout_id.partition(".")[2]
        self._random = random.Random(f"{name}.{self._order.attempt}")

    async def _word(self, container: str, *words: str) -> str:
        if words[0] == "ready":
            return json.dumps({"open": [], "closed": [], "tries": 1, "waited_s": 0.0})
        if words[0] == "fingerprint":
            return hashlib.blake2b(f"{self._order.task.content_hash()}.{self._order.seed}".encode()).hexdigest()[:32]
        return ""

    async def _command(self, container: str, plan: dict[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
        return await self._while_alive(container, self._simulate(plan))

    async def _simulate(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        if plan["id"] == "harness":
            half_s = self._random.uniform(*self._plan.run_s) / 2
            await asyncio.sleep(half_s)
            await self._ask_policy(plan["env"])
            await asyncio.sleep(half_s)
        reward = f"{float(self._random.random() < self._plan.reward):g}".encode()
        return {
            "reason": "exit",
            "code": 0,
            "signal": 0,
            "duration_s": time.monotonic() - began,
            "cpu_s": 0.0,
            "files": {
                path: {"data": base64.b64encode(reward if path.endswith("reward.txt") else b"[]").decode()}
                for path in plan.get("read", ())
            },
        }

    async def _ask_policy(self, env: Mapping[str, str]) -> None:
        """One model call through the recorder, as the harness's own would come."""
        token = urlsplit(env["HTTPS_PROXY"]).username
        body = {"model": "policy", "messages": [{"role": "user", "content": self._order.task.instruction}]}
        async with self._http.post(f"{self.layout.site}/r/{token}/v1/chat/completions", json=body) as response:
            await response.read()


class SimulatedRuntime(KubernetesRuntime):
    """See the module."""

    name = "sim"

    def __init__(
        self, plane: ControlPlane, fleet: Fleet, run_id: str, config: Config, say: Callable[[str], None]
    ) -> None:
        requests = {"cpu": f"{config.sandbox.request_cpu:g}", "memory": config.sandbox.request_memory}
        place = Place(HOST, requests, per_node=config.target.per_node)
        super().__init__(self._connect, run_id, config, place, self._image, say)
        self._plane, self._fleet = plane, fleet
        self.enforced = Enforced("simulated", "nothing runs in the pods of a simulated cluster")

    async def _connect(self) -> Kube:
        return await Kube.connect(self._plane.kubeconfig, "sim", self._config.target.namespace)

    async def _image(self, order: Order) -> RolloutImage:
        return RolloutImage(f"openforge/harness-{order.harness.name}:simulated")

    async def start(self) -> None:
        await super().start()
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64), timeout=aiohttp.ClientTimeout(total=_CALL_S)
        )
        self._opened.push_async_callback(self._http.close)
        self._faults = Faults(self._plane, self.kube, self.watch, self._fleet.faults, self._say)
        self._opened.push_async_callback(self._faults.close)

    def _inside(self, order: Order, name: str, uid: str, image: RolloutImage) -> PodSandbox:
        self._faults.start()
        sandbox = SimulatedSandbox(self.kube, self.watch, order, name, uid, self.layout(order, image), image.env)
        sandbox.begin(self._fleet.rollouts, self._http)
        return sandbox


def fleet_of(config: Config, project: Path) -> Fleet:
    """The fleet file of the target, relative to the project, or ours. ConfigError."""
    return read_fleet(project / Path(config.target.fleet).expanduser() if config.target.fleet else DEFAULT)


def simulated_runtime(
    config: Config, run_id: RunId, project: Path, say: Callable[[str], None]
) -> tuple[SimulatedRuntime, str]:
    """The runtime and the address at which the recorder must listen. InfraError when the cluster is not up."""
    plane = control_plane.status(config.target.cluster)
    if plane.state != "ready":
        raise InfraError(f"the simulated cluster {plane.name!r} is {plane.state}", hint="openforge up --target sim")
    return SimulatedRuntime(plane, fleet_of(config, project), run_id, config, say), HOST


@asynccontextmanager
async def scripted_policy() -> AsyncIterator[str]:
    """A policy that says the same to everybody; its address."""
    message = {"role": "assistant", "content": "Done."}
    answer = {
        "id": "simulated",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
