"""Sandboxes as pods: one a rollout, walled in, ended by whoever ends first: the rollout, we, or its own deadline.

Everything is plain Kubernetes: pods, network policies, exec. One watch tells of all pods, and nothing asks for one
again and again. A sandbox is handed out once its agent has answered and found every door closed but the recorder's.
"""

import asyncio
import base64
import hashlib
import io
import json
import os
import re
import secrets
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cluster.grading import base_env, parse_reward, verdict, verifier_environment
from cluster.kube import Executed, Kube, KubeError, Pod, PodWatch
from cluster.runtimes import pod_spec
from cluster.runtimes.base import Enforced, Exit, Grade, Layout, Order, Reason
from cluster.runtimes.pod_spec import AGENT, KEEPER, PROGRAM
from cluster.states import AttemptError, ErrorClass
from cluster.workspace import SETUP_S
from openforge.config.models import Config, size_bytes
from openforge.errors import InfraError
from openforge.harness import Launch

_STD = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_S, _GATE_S, _SLACK_S, _AWAY_S = 300.0, 30.0, 120.0, 120.0
_UNTRUSTED_S = 30.0
_LEASE_S = 60
_LOG_CAP = 4 << 20
_UNSTARTABLE = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
_OVER_DISK = re.compile(r"ephemeral|emptyDir|exceeds", re.IGNORECASE)

ImageOf = Callable[[Order], Awaitable[str]]


@dataclass(frozen=True)
class Place:
    """Where pods go. `recorder_host` is this machine as pods see it; `requests` is what a pod claims of a node."""

    recorder_host: str
    requests: Mapping[str, str]
    pull_policy: str = "IfNotPresent"
    node_selector: Mapping[str, str] | None = None
    runtime_class: str = ""


class KubernetesRuntime:
    """See the module and `cluster.runtimes.base.Runtime`. `image_of` makes an order's image known to the cluster."""

    name = "kubernetes"

    def __init__(
        self, connect: Callable[[], Awaitable[Kube]], run_id: str, config: Config, place: Place, image_of: ImageOf
    ) -> None:
        self._connect, self._run_id, self._config = connect, run_id, config
        self._place, self._image_of = place, image_of
        self._owner = secrets.token_hex(4)
        self._lease = f"owner-{self._owner}"
        self._forbidden: list[tuple[str, int]] = []
        self.ports = (0, 0)
        self._ending: set[asyncio.Task[None]] = set()
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
        await self.kube.ensure_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
        await self.kube.apply_policy("rollouts", pod_spec.wall("", None), {})
        self._forbidden = [await self.kube.service_address()]
        await self.kube.hold_lease(self._lease, {pod_spec.RUN: self._run_id}, _LEASE_S)
        self._living = asyncio.create_task(self._live())
        await self._reap()
        self.watch = PodWatch(self.kube, f"{pod_spec.OWNER}={self._owner}")
        await self.watch.start()

    async def close(self) -> None:
        if not hasattr(self, "watch"):
            return
        self._living.cancel()
        await asyncio.gather(self._living, *self._ending, return_exceptions=True)
        with suppress(KubeError):
            await self.kube.delete_policy(f"run-{self._run_id}")
            await self.kube.drop_lease(self._lease)
        await self.watch.close()
        await self.kube.close()

    async def _live(self) -> None:
        """Hold the lease for as long as this process lives: its pods are others' to remove once it has run out."""
        while True:
            await asyncio.sleep(_LEASE_S / 3)
            with suppress(KubeError):  # the API server is away, and so is who would remove something
                await self.kube.hold_lease(self._lease, {pod_spec.RUN: self._run_id}, _LEASE_S)

    async def _reap(self) -> None:
        """Remove the pods of orchestrators that were killed, and of earlier ones of this run: their attempts are void.
        Nothing is removed unless both lists came."""
        listed, live = await self.kube.list_pods(f"{pod_spec.ROLE}=rollout"), await self.kube.live_leases()
        for pod in listed["items"]:
            labels = pod["metadata"]["labels"]
            if labels[pod_spec.RUN] == self._run_id or f"owner-{labels[pod_spec.OWNER]}" not in live:
                await self.kube.delete_pod(pod["metadata"]["name"], pod["metadata"]["uid"])

    async def reach(self, proxy_port: int, site_port: int) -> None:
        self.ports = (proxy_port, site_port)
        wall = pod_spec.wall(self._run_id, (self._place.recorder_host, self.ports))
        await self.kube.apply_policy(f"run-{self._run_id}", wall, {pod_spec.RUN: self._run_id})

    def layout(self, order: Order) -> Layout:
        host, (proxy, site) = self._place.recorder_host, self.ports
        return Layout(
            work="/app",
            home="/home/agent",
            temp="/tmp",
            path=f"/opt/node/bin:{_STD}:/opt/openforge/bin",
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
    async def sandbox(self, order: Order) -> AsyncIterator["PodSandbox"]:
        image = await self._image_of(order)
        name = pod_spec.pod_name(order.rollout_id, order.attempt, self._owner)
        deadline_s = _START_S + SETUP_S + order.wall_s + order.task.verifier_timeout_s + _SLACK_S
        pod = pod_spec.rollout_pod(
            name,
            image,
            order.settings,
            labels=pod_spec.pod_labels(self._run_id, self._owner),
            rollout_id=order.rollout_id,
            attempt=order.attempt,
            deadline_s=deadline_s,
            requests=self._place.requests,
            pull_policy=self._place.pull_policy,
            node_selector=self._place.node_selector or {},
            runtime_class=self._place.runtime_class,
        )
        try:
            await self.kube.create_pod(pod)
            uid = await self._running(name, image)
            sandbox = PodSandbox(self, order, name, uid, self.layout(order))
            needed = [(self._place.recorder_host, port) for port in self.ports if port]  # none when tasks are validated
            await sandbox.prepare(self._forbidden, needed)
            yield sandbox
        finally:
            ending = asyncio.create_task(self._end(name))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            await asyncio.shield(ending)

    async def _running(self, name: str, image: str) -> str:
        """Wait until both containers run; the pod's UID. AttemptError with what Kubernetes says instead."""
        try:
            async with asyncio.timeout(_START_S):
                pod = await self.watch.until(name, lambda pod: pod is not None and (_runs(pod) or bool(_trouble(pod))))
        except TimeoutError:
            pod = self.watch.pods.get(name)
            why = _unscheduled(pod) if pod else "the API server tells of no such pod"
            raise AttemptError(ErrorClass.SCHEDULE, f"pod {name} did not start in {_START_S:g} s: {why}") from None
        assert pod is not None
        if trouble := _trouble(pod):
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
                await asyncio.sleep(1)
        self.watch.forget(name)


class PodSandbox:
    """See `cluster.runtimes.base.Sandbox`."""

    def __init__(self, runtime: KubernetesRuntime, order: Order, pod: str, uid: str, layout: Layout) -> None:
        self._runtime, self._order, self._pod, self._uid = runtime, order, pod, uid
        self.layout = layout
        self.gate: dict[str, Any] = {}
        self._left = _LOG_CAP

    async def prepare(self, forbidden: list[tuple[str, int]], needed: list[tuple[str, int]]) -> None:
        """Wait until the walls stand, and make the start files meanwhile. AttemptError."""
        asked = {"forbidden": forbidden, "needed": needed, "patience_s": _GATE_S}
        gate, setup = await asyncio.gather(self._word(AGENT, "ready", json.dumps(asked)), self._set_up())
        self.gate = json.loads(gate)
        if self.gate["open"]:
            told = (
                f"pod {self._pod} reaches {', '.join(self.gate['open'])}: this cluster does not enforce NetworkPolicy"
            )
            raise AttemptError(ErrorClass.SANDBOX, told, hint="openforge doctor --target")
        if self.gate["closed"]:
            told = f"pod {self._pod} does not reach the recorder at {', '.join(self.gate['closed'])}"
            raise AttemptError(ErrorClass.SANDBOX, told, hint="is a firewall between the cluster and this machine?")
        if setup is not None and setup["code"] != 0:
            raise InfraError(f"setup of {self._order.task.ref} failed with {setup['code']}; see {self._order.log}")

    async def run(self, launch: Launch, env: Mapping[str, str], ca: Path) -> Exit:
        layout, order = self.layout, self._order
        files = {f"{layout.home}/{path}": text.encode() for path, text in launch.files.items()}
        files[layout.ca] = await asyncio.to_thread(ca.read_bytes)
        plan = {
            "id": "harness",
            "argv": launch.argv,
            "env": dict(env),
            "cwd": layout.work,
            "wall_s": order.wall_s,
            "strict": True,
            "limits": self._limits(),
            "disk_bytes": size_bytes(order.settings.disk),
            "folders": [layout.work, layout.home, layout.temp],
        }
        began = time.monotonic()
        try:
            status = await self._command(AGENT, plan, files)
        except AttemptError as error:
            if error.error_class not in (ErrorClass.MEMORY, ErrorClass.DISK):
                raise
            return Exit(cast(Reason, str(error.error_class)), None, error.summary, time.monotonic() - began)
        return _exit(status, order.wall_s)

    async def fingerprint(self) -> str:
        return (await self._word(KEEPER, "fingerprint", self.layout.orig)).strip()

    async def grade(self) -> Grade:
        began = time.monotonic()
        order, layout = self._order, self.layout
        env = base_env(layout.path, layout.home, layout.temp)
        untrusted_s = min(_UNTRUSTED_S, order.task.verifier_timeout_s / 2)
        untrusted = {"env": env, "wall_s": untrusted_s, "limits": self._limits()}
        await self._word(AGENT, "untrusted", json.dumps(untrusted))
        path, removed = f"/opt/openforge/bin:{layout.path}", f"{layout.temp}/removed.json"
        plan = {
            "id": "verifier",
            "argv": [*PROGRAM, "verify", f"{layout.tests}/test.sh", layout.work, removed],
            "env": {**env, **verifier_environment(layout), "PATH": path},
            "cwd": layout.work,
            "wall_s": order.task.verifier_timeout_s,
            "strict": False,
            "read": [f"{layout.verifier}/reward.txt", removed],
        }
        status = await self._command(KEEPER, plan, _tree(order.task.tests, layout.tests))
        ended = _exit(status, order.task.verifier_timeout_s)
        read = status["files"][f"{layout.verifier}/reward.txt"]
        reward, problem = parse_reward(_decoded(read)) if "data" in read else (None, read["problem"])
        reward, problem = verdict(ended, reward, problem)
        details: dict[str, Any] = {"exit_code": ended.code, "gate": self.gate}
        details["removed"] = json.loads(_decoded(status["files"][removed]) or b"[]")
        return Grade(reward, problem, details, time.monotonic() - began)

    async def _set_up(self) -> dict[str, Any] | None:
        """Make the start files where the agent does not look, and keep the untouched copy for the verifier."""
        task, layout = self._order.task, self.layout
        if task.setup is None:
            return None
        skills = [[skill, f"{self._order.harness.spec.skills.dir}/{Path(skill).name}"] for skill in task.skills]
        plan = {
            "id": "setup",
            "argv": [*PROGRAM, "set-up", f"/opt/task/{task.setup.name}", layout.work, layout.orig, json.dumps(skills)],
            "env": {
                **base_env(layout.path, layout.home, layout.temp),
                "OPENFORGE_SEED": str(self._order.seed),
            },
            "cwd": layout.work,
            "wall_s": SETUP_S,
            "strict": False,
        }
        return await self._command(KEEPER, plan, _tree(task.setup.parent, "/opt/task"))

    def _limits(self) -> dict[str, int]:
        settings = self._order.settings
        return {"RLIMIT_NOFILE": settings.open_files, "RLIMIT_CPU": settings.cpu_seconds, "RLIMIT_CORE": 0}

    async def _command(self, container: str, plan: dict[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
        """Run a command to its end, however often the stream to it is cut. AttemptError when its pod ends first."""
        data = await asyncio.to_thread(_packed, plan, files)
        came, tried, end_s = 0, 0, 0.0

        def take(output: bytes) -> None:
            nonlocal came
            came += len(output)
            self._keep(output)

        ended = asyncio.create_task(self._over(container))
        try:
            while True:
                words = ("run", str(len(data)), hashlib.sha256(data).hexdigest())
                if tried:
                    words = ("attach", plan["id"], str(came))
                try:
                    told = await _first(self._execute(container, words, b"" if tried else data, take), ended)
                    if status := _status(told):
                        return status
                    if tried and told.code == 0:
                        tried = 0  # PID 1 knows no such command: its start never came through
                        continue
                    problem = told.error.decode(errors="replace")[-300:]
                except (KubeError, OSError) as error:
                    problem = str(error)
                now = time.monotonic()
                if tried == 0:
                    end_s = now + _AWAY_S
                elif now > end_s:
                    raise AttemptError(
                        ErrorClass.SANDBOX, f"pod {self._pod}: {plan['id']} cannot be followed: {problem}"
                    )
                elif tried > 1:
                    await _first(asyncio.sleep(min(2.0, 0.1 * 2**tried)), ended)
                tried += 1
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _word(self, container: str, *words: str) -> str:
        """Ask the pod's agent something short; its output. AttemptError, InfraError."""
        said: list[bytes] = []
        ended = asyncio.create_task(self._over(container))
        try:
            for left in reversed(range(4)):
                said.clear()
                try:
                    told = await _first(self._execute(container, words, b"", said.append), ended)
                    if told.code == 0:
                        return b"".join(said).decode()
                    problem = told.error.decode(errors="replace")[-300:]
                except (KubeError, OSError) as error:
                    problem = str(error)
                if left:
                    await asyncio.sleep(0.3)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
        raise AttemptError(ErrorClass.SANDBOX, f"the agent of pod {self._pod}/{container} does not answer: {problem}")

    async def _execute(
        self, container: str, words: tuple[str, ...], stdin: bytes, on_output: Callable[[bytes], None]
    ) -> Executed:
        return await self._runtime.kube.execute(self._pod, container, (*PROGRAM, *words), stdin, on_output)

    async def _over(self, container: str) -> None:
        """Return never; AttemptError once the pod has ended, been replaced or lost this container."""
        pod = await self._runtime.watch.until(self._pod, lambda pod: _ended(pod, self._uid, container) is not None)
        error_class, why = cast(tuple[ErrorClass, str], _ended(pod, self._uid, container))
        raise AttemptError(error_class, f"pod {self._pod}: {why}")

    def _keep(self, output: bytes) -> None:
        if self._left <= 0:
            return
        self._order.log.parent.mkdir(parents=True, exist_ok=True)
        with self._order.log.open("ab") as file:
            file.write(output[: self._left])
        self._left -= len(output)


async def _first[T](work: Awaitable[T], ended: "asyncio.Task[None]") -> T:
    """What `work` comes to, unless `ended` raises first."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and not working.cancelled() and working.exception() is None:
            return working.result()
        if ended.done():
            ended.result()
        return await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _runs(pod: Pod) -> bool:
    states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
    return len(states) == len(pod["spec"]["containers"]) and all("running" in state for state in states)


def _trouble(pod: Pod) -> tuple[ErrorClass, str] | None:
    """Why a pod will not start, as far as Kubernetes says."""
    for status in pod["status"].get("containerStatuses", ()):
        waiting = status["state"].get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _UNSTARTABLE:
            return ErrorClass.IMAGE, f"{reason}: {message or status['image']}"
        if reason in _BROKEN:
            return ErrorClass.SANDBOX, f"{reason}: {message}"
    return _ended(pod, pod["metadata"]["uid"], AGENT) or _ended(pod, pod["metadata"]["uid"], KEEPER)


def _ended(pod: Pod | None, uid: str, container: str) -> tuple[ErrorClass, str] | None:
    """How a pod, or a container of it, came to its end; None while it lives."""
    if pod is None or pod["metadata"]["uid"] != uid:
        return ErrorClass.EVICTED, "it was deleted"
    if pod["metadata"].get("deletionTimestamp"):
        return ErrorClass.EVICTED, "it is being deleted"
    status = pod["status"]
    if status.get("phase") in ("Failed", "Succeeded"):
        reason, message = status.get("reason", ""), status.get("message", "")
        if reason == "Evicted" and _OVER_DISK.search(message):
            return ErrorClass.DISK, f"evicted: {message}"
        if reason:
            return ErrorClass.EVICTED, f"{reason}: {message}"
    for told in status.get("containerStatuses", ()):
        terminated = told["state"].get("terminated")
        if told["name"] == container and terminated:
            reason = terminated.get("reason", "")
            if reason == "OOMKilled":
                return (ErrorClass.MEMORY if container == AGENT else ErrorClass.GRADER), "killed for its memory"
            return ErrorClass.SANDBOX, f"{container} ended: {reason} {terminated.get('exitCode')}"
    if status.get("phase") in ("Failed", "Succeeded"):
        return ErrorClass.SANDBOX, f"it is {status['phase']}"
    return None


def _unscheduled(pod: Pod) -> str:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    waiting = [
        f"{status['name']}: {status['state'].get('waiting', {}).get('reason')}"
        for status in pod["status"].get("containerStatuses", ())
    ]
    return ", ".join(waiting) or str(pod["status"].get("phase"))


def _status(told: Executed) -> dict[str, Any] | None:
    """The last thing that PID 1 said on the error stream."""
    with suppress(ValueError):
        status = json.loads(told.error)
        if isinstance(status, dict) and "reason" in status:
            return status
    return None


def _exit(status: Mapping[str, Any], wall_s: float) -> Exit:
    reason: Reason = status["reason"]
    details = {
        "time": f"no end after {wall_s:g} s",
        "memory": "over its memory limit",
        "disk": "over its disk limit",
        "signal": f"ended by signal {status['signal']}",
    }
    return Exit(reason, status["code"], details.get(reason, ""), status["duration_s"], status["cpu_s"])


def _decoded(read: Mapping[str, Any]) -> bytes:
    return base64.b64decode(read.get("data", ""))


def _tree(folder: Path, target: str) -> dict[str, bytes]:
    return {f"{target}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _packed(plan: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """A tar of the plan and the files, each readable by all and as executable as scripts must be."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in {"plan.json": json.dumps(plan).encode(), **files}.items():
            entry = tarfile.TarInfo(os.fspath(name).lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(data), 0o755 if data[:2] == b"#!" else 0o644, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
