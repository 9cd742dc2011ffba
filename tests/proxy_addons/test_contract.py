"""The whole program: mitmproxy and sites in one process, spoken to as harnesses do, killed as machines do."""

import asyncio
import base64
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_engine import FakeEngine
from recorder_desk import SECRET, TOKEN

from openforge.journal.reader import read_records
from openforge.journal.seal import seal_abandoned

pytestmark = pytest.mark.contract
ROOT = Path(__file__).parents[2]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def spawn(settings: dict[str, Any], stderr: Any = None) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy_addons"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        limit=1 << 20,
    )
    assert process.stdin
    process.stdin.write(json.dumps(settings, default=str).encode() + b"\n")
    await process.stdin.drain()
    return process


@dataclass
class Live:
    process: asyncio.subprocess.Process
    ready: dict[str, Any]
    run_dir: Path
    engine: FakeEngine
    http: aiohttp.ClientSession
    tls: ssl.SSLContext

    @property
    def proxy(self) -> str:
        return f"http://{TOKEN}:x@127.0.0.1:{self.ready['proxy_port']}"

    @property
    def port(self) -> str:
        return f"http://127.0.0.1:{self.ready['proxy_port']}"

    async def control(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://127.0.0.1:{self.ready['admin_port']}{path}"
        async with self.http.request(method, url, json=body, headers={"authorization": f"Bearer {SECRET}"}) as answer:
            return await answer.json()

    async def register(self, token: str = TOKEN, rollout: str = "r1.t.h.0", **more: Any) -> None:
        await self.control("PUT", f"/rollouts/{rollout}", {"token": token, **more})

    async def ask(self, url: str, body: Any = None, proxy: str = "", **headers: str) -> tuple[int, str]:
        """A model call, as a harness sends it."""
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.http.post(
            url, json=body or CHAT, proxy=proxy or None, headers=names, ssl=self.tls if url[:5] == "https" else True
        ) as answer:
            return answer.status, await answer.text()

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        return list(read_records(self.run_dir, kinds or None))


@pytest.fixture
async def live(tmp_path: Path, qwen3_dir: Path, engine: FakeEngine) -> AsyncIterator[Live]:
    run_dir = tmp_path / "store" / "runs" / "r1"
    settings = {
        "run_id": "r1",
        "run_dir": run_dir,
        "engine": {"url": engine.url, "model": "policy", "weight_version": "w1"},
        "model_dir": qwen3_dir,
        "control_secret": SECRET,
        "ca_dir": tmp_path / "ca",
        "keep_alive_s": 0.2,
    }
    process = await spawn(settings)
    assert process.stdout
    ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    async with aiohttp.ClientSession() as http:
        live = Live(process, ready, run_dir, engine, http, ssl.create_default_context(cafile=ready["ca_path"]))
        await live.register()
        yield live
    if process.returncode is None:
        process.terminate()
        await asyncio.wait_for(process.wait(), 15)


async def test_every_way_in_at_once(live: Live) -> None:
    """Explicit TLS with a real host name, origin form on the proxy port, a base URL, a key: one process, one rollout."""
    live.engine.say("a", "b", "c", "d")
    first = await live.ask("https://api.openai.com/v1/chat/completions", proxy=live.proxy)
    said = [*CHAT["messages"], json.loads(first[1])["choices"][0]["message"], {"role": "user", "content": "more"}]
    urls = [f"{live.port}/r/{TOKEN}/v1", f"http://127.0.0.1:{live.ready['site_port']}/r/{TOKEN}/v1"]
    answers = [await live.ask(f"{url}/chat/completions", {**CHAT, "messages": said}) for url in urls]
    answers.append(await live.ask(f"{live.port}/v1/chat/completions", authorization=f"Bearer {TOKEN}"))
    answers.append(await live.ask("http://api.openai.com/v1/chat/completions", proxy=live.proxy))
    assert [first[0], *(status for status, _ in answers)] == [200] * 5
    closes, opens = live.records("call.close"), live.records("call.open")
    assert [record["break_reason"] for record in closes] == ["root", "append", "retry", "retry", "retry"]
    assert [record["host"] for record in opens][0] == "api.openai.com"
    assert live.records("egress") == []
    sealed = await live.control("POST", "/rollouts/r1.t.h.0/seal", {"attempt": 0})
    assert len(sealed["samples"]) == 5 - 1
    assert "BEGIN CERTIFICATE" in Path(live.ready["ca_path"]).read_text()


async def test_who_calls_is_asked_with_407(live: Live) -> None:
    for proxy in (live.port, f"http://stranger:x@127.0.0.1:{live.ready['proxy_port']}"):
        with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
            await live.ask("https://api.openai.com/v1/chat/completions", proxy=proxy)
        assert caught.value.status == 407
        status, _ = await live.ask("http://api.openai.com/v1/chat/completions", proxy=proxy)
        assert status == 407
    assert not live.engine.requests


async def test_forged_headers_say_nothing(live: Live) -> None:
    await live.register("v" * 24, "r1.t.h.1")
    forged = {"x_openforge_token": "v" * 24, "x_openforge_relay": "x", "x_openforge_host": "evil"}
    status, _ = await live.ask("https://api.openai.com/v1/chat/completions", proxy=live.proxy, **forged)
    assert status == 200
    assert (await live.ask(f"{live.port}/v1/chat/completions", None, "", **forged))[0] == 407
    opens = live.records("call.open")
    assert [(record["rollout_id"], record["host"]) for record in opens] == [("r1.t.h.0", "api.openai.com")]


async def test_nothing_else_leaves_and_each_decision_is_journalled(live: Live) -> None:
    seen: list[str] = []

    async def outside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(outside, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    target = f"http://127.0.0.1:{port}/v1/chat/completions"
    admin = f"http://127.0.0.1:{live.ready['admin_port']}/status"
    assert (await live.ask(target, proxy=live.proxy))[0] == 403
    assert (await live.ask(admin, proxy=live.proxy))[0] == 403
    with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
        await live.ask("https://example.com/", proxy=live.proxy)
    assert caught.value.status == 403
    assert seen == []
    await live.register("w" * 24, "r1.t.h.2", egress_allow=[f"127.0.0.1:{port}"])
    proxy = live.proxy.replace(TOKEN, "w" * 24)
    assert await live.ask(target, proxy=proxy) == (200, "hi")
    assert len(seen) == 1
    server.close()
    decisions = [(record["host"], record["port"], record["decision"]) for record in live.records("egress")]
    assert decisions == [
        ("127.0.0.1", port, "refuse"),
        ("127.0.0.1", live.ready["admin_port"], "refuse"),
        ("example.com", 443, "refuse"),
        ("127.0.0.1", port, "allow"),
    ]


async def test_bytes_that_are_no_http_do_not_get_through_a_tunnel(live: Live) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.ready["proxy_port"])
    user = base64.b64encode(f"{TOKEN}:x".encode()).decode()
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
    async with asyncio.timeout(10):
        while not live.engine.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        while not live.engine.cancelled:
            await asyncio.sleep(0.01)


async def test_kill_9_in_mid_call_loses_no_answer_and_leaves_the_call_visible(live: Live) -> None:
    answered = []
    for number in range(5):
        _, text = await live.ask(f"{live.port}/r/{TOKEN}/v1/chat/completions", {**CHAT, "user": str(number)})
        answered.append(json.loads(text)["id"].removeprefix("chatcmpl-"))
    live.engine.hold = asyncio.Event()
    call = asyncio.create_task(live.ask(f"{live.port}/r/{TOKEN}/v1/chat/completions"))
    async with asyncio.timeout(10):
        while len(live.engine.requests) < 6:
            await asyncio.sleep(0.01)
    live.process.send_signal(signal.SIGKILL)
    await live.process.wait()
    with pytest.raises(aiohttp.ClientError):
        await call
    seal_abandoned(live.run_dir)
    closed = [record["call_id"] for record in live.records("call.close")]
    opened = [record["call_id"] for record in live.records("call.open")]
    assert closed == answered
    assert len(opened) == 6
    assert opened[:5] == answered


@pytest.mark.parametrize("how", ["term", "parent"])
async def test_it_ends_cleanly_and_seals_its_journal(live: Live, how: str) -> None:
    live.engine.hold = asyncio.Event()
    call = asyncio.create_task(live.ask(f"{live.port}/r/{TOKEN}/v1/chat/completions"))
    async with asyncio.timeout(10):
        while not live.engine.requests:
            await asyncio.sleep(0.01)
    if how == "term":
        live.process.terminate()
    else:
        assert live.process.stdin
        live.process.stdin.close()
    assert await asyncio.wait_for(live.process.wait(), 15) == 0
    await asyncio.gather(call, return_exceptions=True)
    assert [record["error_class"] for record in live.records("call.abort")] == ["dropped"]
    assert [path.suffix for path in (live.run_dir / "journal").rglob("*.jsonl*")] == [".jsonl"]
    [vocab] = live.records("vocab")
    lines = (live.run_dir.parents[1] / "vocab" / f"{vocab['hash']}.jsonl").read_text().splitlines()
    assert json.loads(lines[151645]) == {"token_id": 151645, "text": "<|im_end|>"}


@pytest.mark.parametrize(
    "change",
    [{"host": "0.0.0.0"}, {"control_secret": ""}, {"typo": 1}, {"model_dir": "/nowhere"}, {"max_body_bytes": 1}],
    ids=str,
)
async def test_s17_it_refuses_to_start_unsafe_or_wrong(tmp_path: Path, change: dict[str, Any], qwen3_dir: Path) -> None:
    settings = {
        "run_id": "r1",
        "run_dir": tmp_path / "runs" / "r1",
        "engine": {"url": "http://127.0.0.1:1", "model": "policy"},
        "model_dir": qwen3_dir,
        "control_secret": "admin",
        "ca_dir": tmp_path / "ca",
        **change,
    }
    process = await spawn(settings, subprocess.PIPE)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert out == b""
    assert b"recorder" in err
