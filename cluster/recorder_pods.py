"""The recorder as a pod: one start of it is one pod, and all starts of a run are reached under one address.

Everything between here and there goes over exec, as it does to rollouts: no port of the control face is open to any
network, and no cluster has to let us in by another way. One stream carries requests in, answers and the recorder's
files out (recorder_link.py); it may be cut and is taken up again where it was.
"""

import asyncio
import hashlib
import io
import itertools
import secrets
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from cluster import recorder_spec as spec
from cluster.kube import KubeError, Pod
from cluster.recorder import CALL_S, READY_S, STOP_S, Ready, Recorder, RecorderError
from cluster.recorder_copy import RecorderCopy
from cluster.runtimes import pod_state
from cluster.runtimes.kubernetes import KubernetesRuntime, Place
from cluster.runtimes.pod_spec import owned_by
from openforge.journal.records import JournalError

_START_S, _GONE_S, _SYNC_S = 300.0, 60.0, 1.0
_TOKENIZER = ("*.json", "*.jinja")


class RecorderPods:
    """Makes the recorders of one run, one after the other; `image_of` makes their image known to the cluster."""

    def __init__(
        self,
        runtime: KubernetesRuntime,
        place: Place,
        image_of: Callable[[], Awaitable[str]],
        say: Callable[[str], None],
    ) -> None:
        self.runtime, self.place, self.image_of, self.say = runtime, place, image_of, say
        self._numbers = itertools.count()
        self.addresses: dict[int, str] = {}

    def recorder(self, shard: int, settings: Mapping[str, Any], log: Path) -> "RecorderPod":
        name = f"recorder-{self.runtime.owner}-{shard}-{next(self._numbers)}"
        return RecorderPod(self, shard, name, settings, log)

    def metadata(self, shard: int, name: str) -> dict[str, Any]:
        return spec.metadata(name, spec.labels(self.runtime.run_id, self.runtime.owner, shard), self.runtime.lease)

    async def open(self, shard: int) -> None:
        """Make a shard's address, and the wall around who is behind it; tell the runtime. Once is enough."""
        if shard in self.addresses:
            return
        runtime, name = self.runtime, f"recorder-{self.runtime.owner}-{shard}"
        kube, path = runtime.kube, f"/api/v1/namespaces/{runtime.kube.namespace}/services"
        door = spec.door(runtime.run_id, runtime.owner)
        meta = self.metadata(shard, name)
        await kube.apply_policy(name, door, meta["labels"], owned_by(runtime.lease))
        made = await kube.ask("POST", path, spec.service(meta), unless=(409,))
        made = made or await kube.ask("GET", f"{path}/{name}")
        assert made is not None
        self.addresses[shard] = made["spec"]["clusterIP"]
        runtime.meet(shard, self.addresses[shard], spec.peer(runtime.run_id, runtime.owner))


class RecorderPod(Recorder):
    """See `cluster.recorder.Recorder`. Its records come into the run's folder on this machine as it writes them."""

    def __init__(self, pods: RecorderPods, shard: int, name: str, settings: Mapping[str, Any], log: Path) -> None:
        super().__init__(log)
        self.name, self._shard = name, shard
        self._pods, self._kube, self._watch = pods, pods.runtime.kube, pods.runtime.watch
        self._settings, self._uid = settings, ""
        self._why, self._cut = "", ""  # why it is dead; what the other end of the stream said last
        self._copy = RecorderCopy(Path(settings["run_dir"]), log, f"ca-{shard}.pem", self._said_ready, self._answered)
        self._settled = asyncio.Event()  # it is ready, or never will be
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[bytes, asyncio.Future[tuple[int, bytes]]]] = {}
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Ready:
        try:
            return await self._start()
        except KubeError as error:
            await self.stop()
            raise RecorderError(f"the recorder did not start: {error.summary}", hint=error.hint) from error
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> Ready:
        pods, kube = self._pods, self._kube
        await pods.open(self._shard)
        image, meta = await pods.image_of(), pods.metadata(self._shard, self.name)
        told = spec.settings_in_pod(self._settings, secrets.token_urlsafe(32))
        place = pods.place
        pod = spec.pod(
            meta,
            image,
            pull_policy=place.pull_policy,
            node_selector=place.node_selector or {},
            runtime_class=place.runtime_class,
        )
        await kube.ask("POST", f"/api/v1/namespaces/{kube.namespace}/secrets", spec.secret(meta, told), unless=(409,))
        pods.say(f"recorder: pod {self.name} in namespace {kube.namespace}, at {pods.addresses[self._shard]}")
        await kube.create_pod(pod)
        await self._running(image)
        self._tasks = [asyncio.create_task(work()) for work in (self._watch_over, self._keep_link, self._keep_synced)]
        await self._lay()
        dying = asyncio.create_task(self.died.wait())
        getting_ready = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait({dying, getting_ready}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dying.cancel()
            getting_ready.cancel()
        if self.ready is None:
            if not self._copy.broken:
                with suppress(RecorderError):
                    await self._request("SYNC", "", None)  # for the end of its log
            why = self._copy.broken or self._why or f"it was not ready in {READY_S:g} s"
            raise RecorderError(f"the recorder did not start: {why}\n{self._tail()}", hint=f"see {self._log}")
        return self.ready

    async def _running(self, image: str) -> None:
        """Wait until its containers run. RecorderError with what Kubernetes says instead."""
        try:
            async with asyncio.timeout(_START_S):
                pod = await self._watch.until(
                    self.name, lambda pod: pod is not None and (pod_state.runs(pod) or bool(_trouble(pod)))
                )
        except TimeoutError:
            found = self._watch.pods.get(self.name)
            why = pod_state.unscheduled(found) if found else "the API server tells of no such pod"
            raise RecorderError(f"the recorder's pod {self.name} did not start in {_START_S:g} s: {why}") from None
        assert pod is not None
        if not pod_state.runs(pod) and (trouble := _trouble(pod)):
            raise RecorderError(f"the recorder's pod {self.name} did not start: {trouble}", hint=f"image {image}")
        self._uid = pod["metadata"]["uid"]

    async def _lay(self) -> None:
        """Bring the tokenizer, and give the start. A stream that is cut is no end of it: doing it again is the same."""
        model_dir = self._settings.get("model_dir")
        data = await asyncio.to_thread(_packed, Path(model_dir) if model_dir else None)
        argv = [*spec.LINK, "lay", spec.FOLDER, str(len(data)), hashlib.sha256(data).hexdigest()]
        for left in reversed(range(4)):
            with suppress(KubeError):
                told = await self._kube.execute(self.name, spec.SHIPPER, argv, data)
                if told.code == 0:
                    return
                self._why = told.error.decode(errors="replace")[-300:]
            if left:
                await asyncio.sleep(0.5)
        raise RecorderError(f"pod {self.name} did not take the tokenizer: {self._why}")

    async def _watch_over(self) -> None:
        pod = await self._watch.until(self.name, lambda pod: pod_state.ended(pod, self._uid, spec.RECORDER) is not None)
        ended = pod_state.ended(pod, self._uid, spec.RECORDER)
        self._why = f"pod {self.name}: {ended[1] if ended else ''}"
        self.died.set()

    async def _keep_link(self) -> None:
        """The stream, taken up again whenever it is cut, until there is nobody at its other end."""
        tried = 0
        while not self._copy.broken:
            argv, began = [*spec.LINK, "link", spec.FOLDER, spec.SETTINGS], asyncio.get_running_loop().time()
            with suppress(KubeError, OSError):
                told = await self._kube.execute(self.name, spec.SHIPPER, argv, self._outgoing(), self._take)
                self._cut = told.error.decode(errors="replace")[-300:]
            tried = 0 if asyncio.get_running_loop().time() - began > CALL_S else tried + 1
            await asyncio.sleep(min(2.0, 0.1 * 2**tried))

    def _take(self, data: bytes) -> None:
        self._copy.take(data)
        if self._copy.broken:  # and so is the run: nobody need wait
            self._settled.set()
            for _, answer in self._asked.values():
                if not answer.done():
                    answer.set_result((0, b""))

    async def _outgoing(self) -> AsyncIterator[bytes]:
        """What goes in: how much is here, what has no answer yet, then what is asked."""
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._lines = lines
        hello = {"have": self._copy.have()}
        yield orjson.dumps(hello) + b"\n"
        for line, _ in list(self._asked.values()):
            yield line
        while True:
            yield await lines.get()

    async def _keep_synced(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_S)
            await asyncio.to_thread(self._copy.sync)

    def _said_ready(self, told: dict[str, Any], ca: Path) -> None:
        names = ("recorder_id", "proxy_port", "site_port", "admin_port", "pid")
        self.ready = Ready(**{name: told[name] for name in names}, ca_path=ca)
        self._settled.set()

    def _answered(self, number: int, status: int, body: bytes) -> None:
        if number in self._asked and not self._asked[number][1].done():
            self._asked[number][1].set_result((status, body))

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        asking, dying = asyncio.create_task(self._request(method, path, body)), asyncio.create_task(self.died.wait())
        try:
            await asyncio.wait({asking, dying}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise RecorderError(f"the recorder died before it answered {method} {path} ({self._why})")
        finally:
            asking.cancel()
            dying.cancel()
            await asyncio.gather(asking, dying, return_exceptions=True)

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """The answer; all that was written before it is here by then. RecorderError, JournalError."""
        self._check_kept()
        number = next(self._numbers)
        line = orjson.dumps({"id": number, "method": method, "path": path, "body": body}) + b"\n"
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = (line, answer)
        self._lines.put_nowait(line)
        try:
            async with asyncio.timeout(CALL_S):
                status, data = await answer
        except TimeoutError:
            raise RecorderError(f"the recorder does not answer {method} {path} {self._cut}".strip()) from None
        finally:
            del self._asked[number]
        self._check_kept()
        if status == 599:
            raise RecorderError(f"the recorder does not answer {method} {path}: {data.decode(errors='replace')}")
        return status, data

    def _check_kept(self) -> None:
        if self._copy.broken:
            raise JournalError(self._copy.broken, hint=f"check the disk under {self._settings['run_dir']}")

    async def stop(self) -> None:
        """What it has written is brought home first, as far as its pod is still there."""
        if self._tasks:
            if not self.died.is_set():
                with suppress(KubeError, TimeoutError):
                    await self._kube.execute(self.name, spec.RECORDER, ("sh", "-c", "kill -TERM 1"))
                    await asyncio.wait_for(self.died.wait(), STOP_S)
            if self._reachable():
                with suppress(RecorderError, JournalError):
                    await self._request("SYNC", "", None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._copy.close()
        self.died.set()
        await self._remove()

    def _reachable(self) -> bool:
        pod = self._watch.pods.get(self.name)
        return pod is not None and pod_state.ended(pod, self._uid, spec.SHIPPER) is None

    async def _remove(self) -> None:
        """Whatever is left of it goes with the lease."""
        secret = f"/api/v1/namespaces/{self._kube.namespace}/secrets/{self.name}"
        with suppress(KubeError, TimeoutError):
            await self._kube.delete_pod(self.name)
            await self._kube.ask("DELETE", secret, unless=(404,))
            async with asyncio.timeout(_GONE_S):
                await self._watch.until(self.name, lambda pod: pod is None)
        self._watch.forget(self.name)

    def _tail(self) -> str:
        with suppress(OSError):
            return self._log.read_bytes()[-1500:].decode(errors="replace").strip()
        return ""


def _trouble(pod: Pod) -> str:
    """Why it will not run, as far as Kubernetes says."""
    told = pod_state.trouble(pod) or pod_state.ended(pod, pod["metadata"]["uid"], spec.RECORDER)
    return told[1] if told else ""


def _packed(model_dir: Path | None) -> bytes:
    """What of a model's folder a recorder reads: all but the weights."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for pattern in _TOKENIZER if model_dir else ():
            assert model_dir is not None
            for path in sorted(model_dir.glob(pattern)):
                archive.add(path.resolve(), path.name, recursive=False)
    return buffer.getvalue()
