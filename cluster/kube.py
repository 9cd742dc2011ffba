"""Kubernetes as this project asks for it: objects as plain dicts, one watch for all pods, commands executed in a pod.

On the official async client (`kubernetes.aio`): it finds the cluster, authenticates and speaks HTTP. Here is what it
leaves to its users: a watch that survives closed streams, a restarted API server and versions that are gone (410), and
an exec that tells a command that ended from a stream that was cut.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import orjson
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.stream import WsApiClient

from openforge.errors import InfraError

Pod = dict[str, Any]
_CALL_S, _WATCH_S = 30.0, 60
_CHUNK_BYTES = 1 << 20  # of one message: a bigger one closes the stream
_TRIES, _BACKOFF_S = 6, 0.2
_CONNECTIONS = 32  # a handshake costs both sides more than a request does
_MERGE = "application/merge-patch+json"
_STDIN, _STDOUT, _STDERR, _ERROR = 0, 1, 2, 3


class KubeError(InfraError):
    """What the API server refused, or that it did not answer. `status` is HTTP's, 0 without an answer."""

    def __init__(self, summary: str, status: int = 0) -> None:
        super().__init__(summary, hint="openforge doctor")
        self.status = status


@dataclass(frozen=True)
class Executed:
    """How an exec went. `code` is None when the stream was cut before the command's end was told."""

    code: int | None
    error: bytes


class Kube:
    """One namespace of one cluster."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self._api, self._core = api, client.CoreV1Api(api)
        self._network = client.NetworkingV1Api(api)
        api.configuration.connection_pool_maxsize = 0  # each exec holds a connection for as long as its command runs
        self._sockets: Any = WsApiClient(api.configuration, heartbeat=20)  # type: ignore[no-untyped-call]
        self._exec: Any = client.CoreV1Api(self._sockets)

    @classmethod
    async def connect(cls, kubeconfig: Path | None, context: str, namespace: str) -> Self:
        """InfraError when there is no such cluster in the kubeconfig (None: KUBECONFIG, or the person's own)."""
        settings = client.Configuration()
        settings.connection_pool_maxsize = _CONNECTIONS
        try:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or None,
                context=context or None,
                client_configuration=settings,
            )
        except (config.ConfigException, OSError) as error:
            raise InfraError(
                f"no cluster to talk to: {error}", hint="openforge up; or name a context in [target.NAME]"
            ) from error
        return cls(client.ApiClient(settings), namespace)

    async def close(self) -> None:
        await self._sockets.close()
        await self._api.close()  # type: ignore[no-untyped-call]

    async def ensure_namespace(self, labels: Mapping[str, str]) -> None:
        body = {"metadata": {"name": self.namespace, "labels": dict(labels)}}
        # 403: whoever may not make one has been given it
        await self._unless((403, 409), self._core.create_namespace_without_preload_content, body)

    async def create_pod(self, pod: Pod) -> None:
        """Create it; one of that name that is there already is this one, made by a try whose answer was lost."""
        await self.ask("POST", f"/api/v1/namespaces/{self.namespace}/pods", pod, unless=(409,))

    async def delete_pod(self, name: str, uid: str = "") -> None:
        """Ask for its end without grace. One that is gone is no error, nor is another of the same name."""
        body: dict[str, Any] = {"gracePeriodSeconds": 0}
        if uid:
            body["preconditions"] = {"uid": uid}
        call = self._core.delete_namespaced_pod_without_preload_content
        await self._unless((404, 409), call, name, self.namespace, body=body)

    async def patch_pod_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Say in a kubelet's place what has become of a pod."""
        call = self._core.patch_namespaced_pod_status_without_preload_content
        await self._call(call, name, self.namespace, {"status": dict(status)}, _content_type=_MERGE)

    async def node_names(self, labels: Mapping[str, str] | None = None) -> list[str]:
        """Those that pods can be put on, of these labels."""
        selector = ",".join(f"{name}={value}" for name, value in (labels or {}).items())
        call = self._core.list_node_without_preload_content
        nodes = orjson.loads(await self._call(call, label_selector=selector))["items"]
        return [node["metadata"]["name"] for node in nodes if _takes_pods(node)]

    async def taint_node(self, name: str, taints: Sequence[Mapping[str, str]]) -> None:
        """Its taints are these and no others."""
        call = self._core.patch_node_without_preload_content
        await self._call(call, name, {"spec": {"taints": list(taints)}}, _content_type=_MERGE)

    async def list_pods(self, selector: str) -> dict[str, Any]:
        call = self._core.list_namespaced_pod_without_preload_content
        listed: dict[str, Any] = orjson.loads(await self._call(call, self.namespace, label_selector=selector))
        return listed

    async def apply_policy(
        self, name: str, spec: Mapping[str, Any], labels: Mapping[str, str], owners: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Make a NetworkPolicy be so."""
        meta = {"name": name, "labels": dict(labels), "ownerReferences": list(owners)}
        body = {"metadata": meta, "spec": dict(spec)}
        create = self._network.create_namespaced_network_policy_without_preload_content
        replace = self._network.replace_namespaced_network_policy_without_preload_content
        if await self._unless(409, create, self.namespace, body) is None:
            await self._call(replace, name, self.namespace, body)

    async def delete_policy(self, name: str) -> None:
        call = self._network.delete_namespaced_network_policy_without_preload_content
        await self._unless(404, call, name, self.namespace)

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, unless: tuple[int, ...] = ()
    ) -> dict[str, Any] | None:
        """One request for what has no method here; None when it is one of these refusals."""

        async def send(_request_timeout: float) -> Any:
            headers = {
                "Accept": "application/json",
                "Content-Type": _MERGE if method == "PATCH" else "application/json",
            }
            told = await self._api.param_serialize(
                method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            sent = self._api.call_api(*told, _preload_content=False, _request_timeout=_request_timeout)
            return (await sent).response

        data = await self._unless(unless, send)
        answer: dict[str, Any] | None = None if data is None else orjson.loads(data)
        return answer

    async def service_address(self) -> tuple[str, int]:
        """Where pods find the API server: what an unwalled pod can always reach."""
        call = self._core.read_namespaced_service_without_preload_content
        if told := await self._unless(403, call, "kubernetes", "default"):
            spec = orjson.loads(told)["spec"]
            return spec["clusterIP"], spec["ports"][0]["port"]
        entry = await self.ask("GET", "/api")  # for whoever may not look there: where the server says it is
        assert entry is not None
        host, _, port = entry["serverAddressByClientCIDRs"][0]["serverAddress"].rpartition(":")
        return host.strip("[]"), int(port)

    async def watch(self, selector: str, version: str) -> AsyncIterator[tuple[str, Pod]]:
        """What happens to pods from `version` on: ADDED, MODIFIED, DELETED with the pod. Ends when the stream does;
        KubeError with status 410 when that version is gone."""
        call: Any = self._core.list_namespaced_pod_without_preload_content
        response = await call(
            self.namespace,
            label_selector=selector,
            resource_version=version,
            watch=True,
            allow_watch_bookmarks=True,
            timeout_seconds=_WATCH_S,
            _request_timeout=_WATCH_S + _CALL_S,
        )
        async with contextlib.aclosing(_lines(response)) as lines:
            if response.status != 200:
                raise KubeError(f"the watch was refused with {response.status}", response.status)
            async for line in lines:
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise KubeError(
                        f"the watch broke: {event['object'].get('message')}", event["object"].get("code", 0)
                    )
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]

    async def execute(
        self,
        pod: str,
        container: str,
        argv: Sequence[str],
        stdin: bytes | AsyncIterator[bytes] = b"",
        on_output: Callable[[bytes], None] = lambda data: None,
    ) -> Executed:
        """Run a command in a container; its output goes to `on_output` as it comes, its errors come back. Input that
        comes bit by bit keeps the command company: each part is sent when it is there.

        The protocol cannot say that the input ends, so a command must know how much it reads. KubeError when the
        container is not there to run it.
        """
        call = self._exec.connect_get_namespaced_pod_exec_without_preload_content
        socket = await call(
            pod,
            self.namespace,
            container=container,
            command=list(argv),
            stdin=bool(stdin),
            stdout=True,
            stderr=True,
            tty=False,
        )
        error, code = bytearray(), None
        try:
            async with socket as stream:
                sending = asyncio.create_task(_send(stream, stdin))
                try:
                    async for message in stream:
                        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                            continue
                        channel, data = message.data[0], message.data[1:]
                        if channel == _STDOUT and data:
                            on_output(data)
                        elif channel == _STDERR:
                            error += data
                        elif channel == _ERROR:
                            code = _exit_code(data)
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except aiohttp.WSServerHandshakeError as refused:
            raise KubeError(f"exec in {pod}/{container} was refused: {refused.message}", refused.status) from refused
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # cut: `code` says what is known
        return Executed(code, bytes(error))

    async def _unless(self, statuses: int | tuple[int, ...], call: Any, *args: Any, **kwargs: Any) -> bytes | None:
        """The answer, or None when it is one of these refusals."""
        try:
            return await self._call(call, *args, **kwargs)
        except KubeError as error:
            if error.status in ((statuses,) if isinstance(statuses, int) else statuses):
                return None
            raise

    async def _call(self, call: Any, *args: Any, **kwargs: Any) -> bytes:
        """One request, tried again while the API server is away or overloaded."""
        for left in reversed(range(_TRIES)):
            problem, status = "no answer", 0
            try:
                response = await call(*args, **kwargs, _request_timeout=_CALL_S)
                body: bytes = await response.read()
                if response.status < 400:
                    return body
                status, problem = response.status, _message(body)
            except ApiException as error:
                status, problem = error.status or 0, str(error.reason)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            if left == 0 or (status and status != 429 and status < 500):
                raise KubeError(f"Kubernetes: {problem}", status)
            await asyncio.sleep(random.uniform(0.5, 1) * _BACKOFF_S * 2 ** (_TRIES - left))
        raise AssertionError


async def _lines(response: Any) -> AsyncGenerator[bytes]:
    """Whole lines of a stream, however long."""
    rest = b""
    try:
        async for data in response.content.iter_any():
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                if line:
                    yield line
    finally:
        response.close()


async def _send(stream: Any, data: bytes | AsyncIterator[bytes]) -> None:
    if not isinstance(data, bytes):
        async for part in data:
            await _send(stream, part)
        return
    for start in range(0, len(data), _CHUNK_BYTES):
        await stream.send_bytes(bytes([_STDIN]) + data[start : start + _CHUNK_BYTES])


def _exit_code(data: bytes) -> int:
    """A command's exit code. KubeError when it did not start: the container is gone, or has no such program."""
    told = orjson.loads(data)
    if told.get("status") == "Success":
        return 0
    if told.get("reason") == "NonZeroExitCode":
        return int(told["details"]["causes"][0]["message"])
    raise KubeError(f"exec failed: {_message(data)}")


def _takes_pods(node: Mapping[str, Any]) -> bool:
    spec = node["spec"]
    shut = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in spec.get("taints", ()))
    return not (shut or spec.get("unschedulable"))


def _message(body: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(orjson.loads(body)["message"])
    return body[:200].decode(errors="replace")


class PodWatch:
    """All pods of a selector as they are now, from one stream. Who waits for one of them is woken by its changes."""

    def __init__(self, kube: Kube, selector: str) -> None:
        self._kube, self._selector = kube, selector
        self.pods: dict[str, Pod] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._listed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """KubeError when the first list fails; after that it is tried for ever."""
        version = await self._list()
        self._task = asyncio.create_task(self._follow(version))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, name: str, test: Callable[[Pod | None], bool]) -> Pod | None:
        """The pod once `test` holds of it; it is None where there is none."""
        while True:
            changed = self._changed.setdefault(name, asyncio.Event())
            pod = self.pods.get(name)
            if test(pod):
                return pod
            await changed.wait()

    def forget(self, name: str) -> None:
        """Nobody waits for this pod any more."""
        self._changed.pop(name, None)

    async def _follow(self, version: str) -> None:
        while True:
            try:
                async for kind, pod in self._kube.watch(self._selector, version):
                    version = pod["metadata"]["resourceVersion"]
                    self._put(pod["metadata"]["name"], None if kind == "DELETED" else pod)
                continue  # it ends by itself every few minutes
            except KubeError as error:
                if error.status != 410:
                    await asyncio.sleep(random.uniform(0.1, 0.5))
            except (aiohttp.ClientError, ApiException, OSError, TimeoutError, orjson.JSONDecodeError):
                await asyncio.sleep(random.uniform(0.1, 0.5))
            # Only what a list that succeeded lacks is gone: an API server that is away has no say about pods.
            while True:
                with contextlib.suppress(KubeError):
                    version = await self._list()
                    break
                await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _list(self) -> str:
        listed = await self._kube.list_pods(self._selector)
        there = {pod["metadata"]["name"]: pod for pod in listed["items"]}
        for name in self.pods.keys() - there.keys():
            self._put(name, None)
        for name, pod in there.items():
            self._put(name, pod)
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _put(self, name: str, pod: Pod | None) -> None:
        if pod is None:
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
        if changed := self._changed.pop(name, None):
            changed.set()
