"""The whole program: mitmproxy and sites in one process, spoken to as harnesses do, killed as machines do."""

import asyncio
import base64
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_engine import FakeEngine
from recorder_desk import SECRET, until

from openforge.journal.reader import read_records
from openforge.journal.seal import seal_abandoned
from proxy_addons.render.base import Renderer

pytestmark = pytest.mark.contract
ROOT = Path(__file__).parents[2]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def spawn(settings: dict[str, Any], stderr: int | None = None) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "proxy_addons"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
    )
    assert process.stdin
    process.stdin.write(json.dumps(settings, default=str).encode() + b"\n")
    process.stdin.flush()
    return process


@dataclass
class Program:
    """A recorder process, and the port where it expects its engine."""

    process: "subprocess.Popen[bytes]"
    ready: dict[str, Any]
    run_dir: Path
    engine_port: int

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(15)


def start(folder: Path, model_dir: Path) -> Program:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run_dir = folder / "store" / "runs" / "r1"
    settings = {
        "run_id": "r1",
        "run_dir": run_dir,
        "engine": {"url": f"http://127.0.0.1:{port}", "model": "policy", "weight_version": "w1"},
        "model_dir": model_dir,
        "control_secret": SECRET,
        "ca_dir": folder / "ca",
        "keep_alive_s": 0.2,
    }
    process = spawn(settings)
    assert process.stdout
    return Program(process, json.loads(process.stdout.readline()), run_dir, port)


@dataclass
class Live:
    """A rollout of this test in a recorder that runs, and its engine."""

    program: Program
    engine: FakeEngine
    http: aiohttp.ClientSession
    tls: ssl.SSLContext
    token: str
    rollout: str

    @property
    def proxy(self) -> str:
        return f"http://{self.token}:x@127.0.0.1:{self.program.ready['proxy_port']}"

    @property
    def port(self) -> str:
        return f"http://127.0.0.1:{self.program.ready['proxy_port']}"

    async def control(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://127.0.0.1:{self.program.ready['admin_port']}{path}"
        async with self.http.request(method, url, json=body, headers={"authorization": f"Bearer {SECRET}"}) as answer:
            return await answer.json()

    async def register(self, token: str = "", rollout: str = "", **more: Any) -> None:
        await self.control("PUT", f"/rollouts/{rollout or self.rollout}", {"token": token or self.token, **more})

    async def ask(self, url: str, body: Any = None, proxy: str = "", **headers: str) -> tuple[int, str]:
        """A model call, as a harness sends it."""
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.http.post(
            url, json=body or CHAT, proxy=proxy or None, headers=names, ssl=self.tls if url[:5] == "https" else True
        ) as answer:
            return answer.status, await answer.text()

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """Of this test."""
        found = read_records(self.program.run_dir, kinds or None)
        return [record for record in found if (record["rollout_id"] or "").startswith(self.rollout)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, qwen3_dir: Path) -> Iterator[Program]:
    """One process for all tests that leave it alive: it takes seconds to start."""
    program = start(tmp_path_factory.mktemp("recorder"), qwen3_dir)
    yield program
    assert program.stop() == 0


@asynccontextmanager
async def living(program: Program, renderer: Renderer) -> AsyncGenerator[Live]:
    engine = FakeEngine(renderer.tok.full)
    await engine.start(program.engine_port)
    tls = ssl.create_default_context(cafile=program.ready["ca_path"])
    async with aiohttp.ClientSession() as http:
        live = Live(program, engine, http, tls, secrets.token_hex(12), f"r1.t.h.{secrets.randbelow(10**9)}")
        await live.register()
        yield live
    await engine.stop()


@pytest.fixture
async def live(program: Program, renderer: Renderer) -> AsyncIterator[Live]:
    async with living(program, renderer) as live:
        yield live


@pytest.fixture
async def mortal(tmp_path: Path, qwen3_dir: Path, renderer: Renderer) -> AsyncIterator[Live]:
    """A recorder of this test's own, to be ended by it."""
    program = start(tmp_path, qwen3_dir)
    async with living(program, renderer) as live:
        yield live
    program.process.kill()
    program.process.wait()


async def test_every_way_in_at_once(live: Live) -> None:
    """Explicit TLS with a real host name, origin form on the proxy port, a base URL, a key: one rollout."""
    live.engine.say("a", "b", "c", "d")
    first = await live.ask("https://api.openai.com/v1/chat/completions", proxy=live.proxy)
    said = [*CHAT["messages"], json.loads(first[1])["choices"][0]["message"], {"role": "user", "content": "more"}]
    urls = [f"{live.port}/r/{live.token}/v1", f"http://127.0.0.1:{live.program.ready['site_port']}/r/{live.token}/v1"]
    answers = [await live.ask(f"{url}/chat/completions", {**CHAT, "messages": said}) for url in urls]
    answers.append(await live.ask(f"{live.port}/v1/chat/completions", authorization=f"Bearer {live.token}"))
    answers.append(await live.ask("http://api.openai.com/v1/chat/completions", proxy=live.proxy))
    assert [first[0], *(status for status, _ in answers)] == [200] * 5
    closes, opens = live.records("call.close"), live.records("call.open")
    assert [record["break_reason"] for record in closes] == ["root", "append", "retry", "retry", "retry"]
    assert next(record["host"] for record in opens) == "api.openai.com"
    assert live.records("egress") == []
    sealed = await live.control("POST", f"/rollouts/{live.rollout}/seal", {"attempt": 0})
    assert len(sealed["samples"]) == 5 - 1


async def test_who_calls_is_asked_with_407(live: Live) -> None:
    for proxy in (live.port, f"http://stranger:x@127.0.0.1:{live.program.ready['proxy_port']}"):
        with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
            await live.ask("https://api.openai.com/v1/chat/completions", proxy=proxy)
        assert caught.value.status == 407
        status, _ = await live.ask("http://api.openai.com/v1/chat/completions", proxy=proxy)
        assert status == 407
    assert not live.engine.requests


async def test_forged_headers_say_nothing(live: Live) -> None:
    other = secrets.token_hex(12)
    await live.register(other, f"{live.rollout}.other")
    forged = {"x_openforge_token": other, "x_openforge_relay": "x", "x_openforge_host": "evil"}
    status, _ = await live.ask("https://api.openai.com/v1/chat/completions", proxy=live.proxy, **forged)
    assert status == 200
    assert (await live.ask(f"{live.port}/v1/chat/completions", None, "", **forged))[0] == 407
    opens = live.records("call.open")
    assert [(record["rollout_id"], record["host"]) for record in opens] == [(live.rollout, "api.openai.com")]


async def test_nothing_else_leaves_and_each_decision_is_journalled(live: Live) -> None:
    seen: list[str] = []

    async def outside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(outside, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = f"http://127.0.0.1:{port}/v1/chat/completions"
    admin = f"http://127.0.0.1:{live.program.ready['admin_port']}/status"
    assert (await live.ask(target, proxy=live.proxy))[0] == 403
    assert (await live.ask(admin, proxy=live.proxy))[0] == 403
    with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
        await live.ask("https://example.com/", proxy=live.proxy)
    assert caught.value.status == 403
    assert seen == []
    other = secrets.token_hex(12)
    await live.register(other, f"{live.rollout}.other", egress_allow=[f"127.0.0.1:{port}"])
    proxy = live.proxy.replace(live.token, other)
    assert await live.ask(target, proxy=proxy) == (200, "hi")
    assert len(seen) == 1
    server.close()
    decisions = [(record["host"], record["port"], record["decision"]) for record in live.records("egress")]
    assert decisions == [
        ("127.0.0.1", port, "refuse"),
        ("127.0.0.1", live.program.ready["admin_port"], "refuse"),
        ("example.com", 443, "refuse"),
        ("127.0.0.1", port, "allow"),
    ]


async def test_bytes_that_are_no_http_do_not_get_through_a_tunnel(live: Live) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.program.ready["proxy_port"])
    user = base64.b64encode(f"{live.token}:x".encode()).decode()
    writer.write(f"CONNECT api.openai.com:443 HTTP/1.1\r\nproxy-authorization: Basic {user}\r\n\r\n".encode())
    assert b"200" in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"SSH-2.0-hello\r\n")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_websocket_through_the_proxy_is_426(live: Live) -> None:
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    url = "https://api.openai.com/v1/responses"
    async with live.http.get(url, headers=headers, proxy=live.proxy, ssl=live.tls) as answer:
        assert answer.status == 426


async def test_keep_alives_and_a_cut_reach_through_tls(live: Live) -> None:
    live.engine.hold = asyncio.Event()
    live.engine.fail("500")
    url = "https://api.openai.com/v1/chat/completions"
    async with live.http.post(url, json={**CHAT, "stream": True}, proxy=live.proxy, ssl=live.tls) as answer:
        assert await answer.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        live.engine.hold.set()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()


async def test_a_client_that_leaves_through_tls_cancels_the_engine(live: Live) -> None:
    live.engine.hold = asyncio.Event()
    call = asyncio.create_task(live.ask("https://api.openai.com/v1/chat/completions", proxy=live.proxy))
    await until(lambda: live.engine.requests)
    call.cancel()
    await until(lambda: live.engine.cancelled)


async def test_kill_9_in_mid_call_loses_no_answer_and_leaves_the_call_visible(mortal: Live) -> None:
    answered = []
    url = f"{mortal.port}/r/{mortal.token}/v1/chat/completions"
    for number in range(5):
        _, text = await mortal.ask(url, {**CHAT, "user": str(number)})
        answered.append(json.loads(text)["id"].removeprefix("chatcmpl-"))
    mortal.engine.hold = asyncio.Event()
    call = asyncio.create_task(mortal.ask(url))
    await until(lambda: len(mortal.engine.requests) == 6)
    mortal.program.process.kill()
    mortal.program.process.wait()
    with pytest.raises(aiohttp.ClientError):
        await call
    seal_abandoned(mortal.program.run_dir)
    closed = [record["call_id"] for record in mortal.records("call.close")]
    opened = [record["call_id"] for record in mortal.records("call.open")]
    assert closed == answered
    assert len(opened) == 6
    assert opened[:5] == answered
    assert mortal.records("call.abort") == []


@pytest.mark.parametrize("how", ["term", "parent"])
async def test_it_ends_cleanly_and_seals_its_journal(mortal: Live, how: str) -> None:
    run_dir = mortal.program.run_dir
    vocab = (await until(lambda: list(read_records(run_dir, ["vocab"])), 60))[0]
    mortal.engine.hold = asyncio.Event()
    call = asyncio.create_task(mortal.ask(f"{mortal.port}/r/{mortal.token}/v1/chat/completions"))
    await until(lambda: mortal.engine.requests)
    if how == "term":
        mortal.program.process.terminate()
    else:
        assert mortal.program.process.stdin
        mortal.program.process.stdin.close()
    assert await asyncio.to_thread(mortal.program.process.wait, 15) == 0
    await asyncio.gather(call, return_exceptions=True)
    assert [record["error_class"] for record in mortal.records("call.abort")] == ["dropped"]
    assert [path.suffix for path in (run_dir / "journal").rglob("*.jsonl*")] == [".jsonl"]
    lines = (run_dir.parents[1] / "vocab" / f"{vocab['hash']}.jsonl").read_text().splitlines()
    assert json.loads(lines[151645]) == {"token_id": 151645, "text": "<|im_end|>"}


def test_an_engine_that_cannot_be_recorded_is_told_in_one_clean_line(tmp_path: Path, qwen3_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(3):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

        threading.Thread(target=answer, daemon=True).start()
        process = spawn(
            {
                "run_id": "r1",
                "run_dir": tmp_path / "runs" / "r1",
                "engine": {"url": f"http://127.0.0.1:{listening.getsockname()[1]}", "model": "policy"},
                "model_dir": qwen3_dir,
                "control_secret": SECRET,
                "ca_dir": tmp_path / "ca",
            },
            subprocess.PIPE,
        )
        assert process.stderr
        process.wait(60)  # its input is still open: the parent lives
        told = process.stderr.read().decode()
    assert process.returncode == 3
    assert told.startswith("recorder: ")
    assert len(told.splitlines()) == 1, told


@pytest.mark.parametrize("change", [{"admin_host": "0.0.0.0"}, {"model_dir": "/nowhere"}], ids=str)
def test_s17_it_refuses_to_start_unsafe_or_wrong(tmp_path: Path, change: dict[str, Any], qwen3_dir: Path) -> None:
    settings = {
        "run_id": "r1",
        "run_dir": tmp_path / "runs" / "r1",
        "engine": {"url": "http://127.0.0.1:1", "model": "policy"},
        "model_dir": qwen3_dir,
        "control_secret": "admin",
        "ca_dir": tmp_path / "ca",
        **change,
    }
    process = spawn(settings, subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == b""
    assert b"recorder" in err
    assert b"Traceback" not in err
