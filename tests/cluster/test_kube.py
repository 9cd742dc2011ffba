"""The client against an API server that is slow, overloaded, cut off or forgetful."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSMsgType, web
from kubernetes.aio import client

from cluster import kube as kube_module
from cluster.kube import Kube, KubeError, PodWatch


def pod(name: str, version: int, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}, "status": status}


class ApiServer:
    """Answers lists, watches and execs by script: `answers` of a list, `events` of each watch."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.watches: list[list[dict[str, Any]]] = []
        self.asked: list[str] = []
        self.deletes: list[int] = []
        self.received: list[bytes] = []
        self.exec_ends = "Success"

    async def start(self) -> Kube:
        app = web.Application()
        pods = "/api/v1/namespaces/n/pods"
        app.router.add_get(pods, self._get)
        app.router.add_delete(pods + "/{name}", self._delete)
        app.router.add_get(pods + "/{name}/exec", self._exec)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        settings = client.Configuration(host=f"http://127.0.0.1:{self.runner.addresses[0][1]}")
        self.kube = Kube(client.ApiClient(settings), "n")
        return self.kube

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.asked.append("list")
            answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            if isinstance(answer, int):
                return web.json_response({"message": "no"}, status=answer)
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": answer})
        self.asked.append(f"watch {request.query['resourceVersion']}")
        response = web.StreamResponse()
        await response.prepare(request)
        for event in self.watches.pop(0) if self.watches else []:
            await asyncio.sleep(event.pop("after", 0))
            line = json.dumps(event).encode() + b"\n"
            await response.write(line[:20])
            await response.write(line[20:])
        if not self.watches:
            await asyncio.sleep(30)
        return response

    async def _delete(self, request: web.Request) -> web.Response:
        status = self.deletes.pop(0)
        return web.json_response({"message": f"said {status}"}, status=status)

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        await socket.send_bytes(b"\x01out " + " ".join(request.query.getall("command")).encode())
        wanted = int(request.query.getall("command")[-1])
        while sum(len(data) - 1 for data in self.received) < wanted:
            message = await socket.receive()
            assert message.type is WSMsgType.BINARY
            self.received.append(message.data)
        if self.exec_ends == "cut":
            assert request.transport is not None
            request.transport.abort()
            return socket
        told = {"status": self.exec_ends}
        if self.exec_ends != "Success":
            told |= {"reason": "NonZeroExitCode", "details": {"causes": [{"message": "3"}]}}  # type: ignore[dict-item]
        await socket.send_bytes(b"\x02err")
        await socket.send_bytes(b"\x03" + json.dumps(told).encode())
        await socket.close()
        return socket


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(kube_module, "_BACKOFF_S", 0.001)
    server = ApiServer()
    await server.start()
    yield server
    await server.kube.close()
    await server.runner.cleanup()


async def test_a_watch_that_breaks_in_any_way_goes_on_and_loses_no_change(api: ApiServer) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    api.lists = [[pod("a", 1)], [pod("a", 9), pod("b", 9)]]
    api.watches = [
        [{"type": "MODIFIED", "object": pod("a", 8, phase="Running")}],  # and then the stream just ends
        [gone],
        [{"type": "DELETED", "object": pod("b", 12), "after": 0.3}, {"type": "BOOKMARK", "object": pod("", 13)}],
    ]
    watch = PodWatch(api.kube, "x=y")
    await watch.start()
    async with asyncio.timeout(5):
        await watch.until("b", lambda found: found is not None)
        await watch.until("b", lambda found: found is None)
    assert api.asked == ["list", "watch 7", "watch 8", "list", "watch 7"]
    assert set(watch.pods) == {"a"}
    await watch.close()


async def test_k31_a_list_that_fails_says_nothing_about_pods(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "_TRIES", 1)
    api.lists = [[pod("a", 1)], 500, 503, [pod("a", 5)]]
    api.watches = [[{"type": "ERROR", "object": {"code": 410}}], []]
    watch = PodWatch(api.kube, "x=y")
    await watch.start()
    seen: set[int] = set()
    async with asyncio.timeout(20):
        while api.asked.count("list") < 4 or len(api.asked) < 6:
            seen.add(len(watch.pods))
            await asyncio.sleep(0.01)
    assert seen == {1}
    await watch.close()


async def test_k10_requests_are_tried_again_each_by_itself(api: ApiServer) -> None:
    api.deletes = [500, 429, 200, 503, 200]
    await api.kube.delete_pod("a")
    await api.kube.delete_pod("b")
    assert api.deletes == []


async def test_k17_a_refusal_is_final_and_says_what_it_was(api: ApiServer) -> None:
    api.deletes = [403, 404]
    with pytest.raises(KubeError, match="said 403") as caught:
        await api.kube.delete_pod("a")
    assert caught.value.status == 403
    await api.kube.delete_pod("a")  # gone already: what was wanted


async def test_k07_a_long_input_travels_in_small_messages_whole_and_in_order(api: ApiServer) -> None:
    data = bytes(range(256)) * (5 << 12)  # 5 MiB
    said: list[bytes] = []
    done = await api.kube.execute("a", "c", ["put", "a b", str(len(data))], data, said.append)
    assert (done.code, done.error, said) == (0, b"err", [f"out put a b {len(data)}".encode()])
    assert b"".join(message[1:] for message in api.received) == data
    assert max(map(len, api.received)) <= (1 << 20) + 1


async def test_an_exec_tells_an_end_from_a_cut(api: ApiServer) -> None:
    api.exec_ends = "Failure"
    assert (await api.kube.execute("a", "c", ["0"])).code == 3
    api.exec_ends = "cut"
    assert (await api.kube.execute("a", "c", ["0"])).code is None
    with pytest.raises(KubeError, match="refused"):
        await Kube(api.kube._api, "elsewhere").execute("a", "c", ["0"])
