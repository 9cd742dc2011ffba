import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from openforge.errors import InfraError, OpenForgeError
from trainer.orchestrator import TOKEN, URL, Orchestrator

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.orchestrator._BACKOFF_S", 0.001)


@asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[str]:
    """The address of a real server whose every path is answered by `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asked(handler: Handler) -> AsyncIterator[Orchestrator]:
    """A client of such a server."""
    async with serving(handler) as url:
        client = Orchestrator(url, "t0ken")
        try:
            yield client
        finally:
            await client.close()


def drop(request: web.Request) -> web.Response:
    """The connection ends without a reply."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def test_a_rollout_is_asked_for_once_and_awaited_to_its_end() -> None:
    seen: list[tuple[str, str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer t0ken"
        seen.append((request.method, request.path_qs, await request.json() if request.can_read_body else None))
        return web.json_response({"rollout_id": "r1.a.b.0", "finished": len(seen) > 3, "reward": 1.0})

    async with asked(answer) as orchestrator:
        view = await orchestrator.rollout({"task": "desk/a", "key": "0.u.1"})
    assert view["reward"] == 1.0
    assert seen[0] == ("POST", "/rollouts", {"task": "desk/a", "key": "0.u.1"})
    assert seen[1:] == [("GET", "/rollouts/r1.a.b.0?wait=30", None)] * 3


async def test_a_broken_connection_is_tried_again_with_the_same_body() -> None:
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return drop(request) if len(bodies) < 4 else web.json_response({"ok": True})

    async with asked(answer) as orchestrator:
        assert await orchestrator.ask("POST", "/steps", {"step": 3}) == {"ok": True}
    assert bodies == [{"step": 3}] * 4


async def test_an_orchestrator_that_listens_late_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    client = Orchestrator(f"http://127.0.0.1:{port}", "t0ken")
    asking = asyncio.create_task(client.ask("GET", "/status"))
    await asyncio.sleep(0.01)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"up": True})

    async with serving(answer, port):
        assert await asyncio.wait_for(asking, 10) == {"up": True}
    await client.close()


async def test_one_that_never_answers_is_the_machines_fault_and_says_what_was_asked() -> None:
    tries = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        return drop(request)

    async with asked(answer) as orchestrator:
        with pytest.raises(InfraError, match="does not answer POST /rollouts"):
            await orchestrator.rollout({})
    assert tries >= 8


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (404, '{"error": "no task is called desk/x"}', OpenForgeError, "404 no task is called desk/x"),
        (409, '{"error": "no trainer has started"}', OpenForgeError, "409 no trainer has started"),
        (405, "405: Method Not Allowed", OpenForgeError, "405 405: Method Not Allowed"),
        (400, "[1]", OpenForgeError, r"400 \[1\]"),
        (503, '{"error": "the run is ending"}', InfraError, "503 the run is ending"),
        (500, "500 Internal Server Error\n\nServer got itself in trouble", InfraError, "got itself in trouble"),
        (502, "", InfraError, "could not PUT /policies/default"),
    ],
)
async def test_what_is_refused_is_raised_at_once_with_its_reason(
    status: int, body: str, error: type[OpenForgeError], says: str
) -> None:
    tries = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal tries
        tries += 1
        return web.Response(status=status, text=body)

    async with asked(answer) as orchestrator:
        with pytest.raises(OpenForgeError, match=says) as caught:
            await orchestrator.ask("PUT", "/policies/default", {})
    assert type(caught.value) is error
    assert tries == 1


async def test_samples_are_the_rows_as_told() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/rollouts/r1/samples"
        return web.json_response({"samples": [{"sample_id": "a"}, {"sample_id": "main"}]})

    async with asked(answer) as orchestrator:
        assert [row["sample_id"] for row in await orchestrator.samples("r1")] == ["a", "main"]


async def test_where_it_is_comes_from_the_environment_or_is_named_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "http://127.0.0.1:1")
    with pytest.raises(InfraError, match=TOKEN) as caught:
        Orchestrator.from_environment()
    assert "openforge train" in caught.value.hint

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"told": request.headers["authorization"]})

    async with serving(answer) as url:
        monkeypatch.setenv(URL, url)
        monkeypatch.setenv(TOKEN, "hush")
        found = Orchestrator.from_environment()
        assert await found.ask("GET", "/status") == {"told": "Bearer hush"}
        await found.close()
