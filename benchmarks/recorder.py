"""What the recorder costs: CPU per turn at 30,000 tokens of history, growth over a rollout, loop stalls, memory.

Everything is real but the engine, which answers at once and is its own process, so that only the recorder's CPU is
counted (schedstat of its threads: nanoseconds on a core, whatever else the machine does). Text is Python source: it
tokenises like what agents read. Prints one line per figure and ends with 5 when one misses its goal.
"""

import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.figure import report
from openforge.cache import cache_dir

ROOT = Path(__file__).resolve().parent.parent
SECRET = "benchmark"
HISTORY_TOKENS = 30_000
CALL = '{"name": "bash", "arguments": {"command": "cat notes.txt"}}'
ANSWER = f"<think>\nLet me look.\n</think>\n\n<tool_call>\n{CALL}\n</tool_call>"
TOOLS = ("bash", "read", "write", "edit", "grep", "glob", "web", "todo", "task")


def source_text() -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "".join(
        (folder / name).read_text() for name in ("argparse.py", "typing.py", "inspect.py", "tarfile.py", "ast.py")
    )


def cpu_ms(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e6


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass
class Bench:
    http: aiohttp.ClientSession
    ready: dict[str, Any]
    tls: ssl.SSLContext
    text: str = field(default_factory=source_text)

    async def control(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://127.0.0.1:{self.ready['admin_port']}{path}"
        async with self.http.request(method, url, json=body, headers={"authorization": f"Bearer {SECRET}"}) as answer:
            return await answer.json()

    async def register(self, number: int) -> str:
        token = f"{number:024d}"
        await self.control("PUT", f"/rollouts/r1.t.h.{number}", {"token": token})
        return token

    def first_body(self, tokens: int, offset: int) -> dict[str, Any]:
        tools = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": self.text[index * 500 : index * 500 + 700],
                    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
                },
            }
            for index, name in enumerate(TOOLS)
        ]
        start = offset % 40_000
        user = f"{offset}\n" + self.text[start : start + int(tokens * 4.1)]
        return {"model": "m", "stream": True, "messages": [{"role": "user", "content": user}], "tools": tools}

    async def call(self, token: str, body: dict[str, Any], explicit: bool) -> dict[str, Any]:
        """One streamed model call, as a harness makes it; the assistant message with its usage."""
        if explicit:
            url, proxy = (
                "https://api.openai.com/v1/chat/completions",
                f"http://{token}:x@127.0.0.1:{self.ready['proxy_port']}",
            )
        else:
            url, proxy = f"http://127.0.0.1:{self.ready['site_port']}/r/{token}/v1/chat/completions", None
        async with self.http.post(url, json=body, proxy=proxy, ssl=self.tls if explicit else True) as answer:
            raw = await answer.read()
            assert answer.status == 200, raw[:500]
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for line in raw.split(b"\n\n"):
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            message["usage"] = event.get("usage")
            delta = event["choices"][0]["delta"]
            if "reasoning_content" in delta:
                message["reasoning_content"] = delta["reasoning_content"]
            if "tool_calls" in delta:
                message["tool_calls"] = [
                    {key: call[key] for key in ("id", "type", "function")} for call in delta["tool_calls"]
                ]
        return message

    async def conversation(self, number: int, tokens: int, explicit: bool = False) -> "Conversation":
        return Conversation(self, await self.register(number), self.first_body(tokens, number), explicit)


@dataclass
class Conversation:
    """One rollout, a turn at a time: a call with a tool, then 1,200 characters of its result."""

    bench: Bench
    token: str
    body: dict[str, Any]
    explicit: bool
    turns: int = 0
    tokens: int = 0

    async def turn(self) -> float:
        """One more turn; CPU milliseconds that the recorder spent on it."""
        pid, text = self.bench.ready["pid"], self.bench.text
        before = cpu_ms(pid)
        said = await self.bench.call(self.token, self.body, self.explicit)
        await asyncio.sleep(0.01)  # what the recorder still has to do after the last byte counts too
        spent = cpu_ms(pid) - before
        self.turns += 1
        self.tokens = said.pop("usage")["prompt_tokens"]
        start = 100_000 + self.turns * 1200
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": text[start : start + 1200]}
        self.body["messages"] += [said, result]
        return spent

    async def go_to(self, turn: int) -> float:
        """Turns up to `turn`; the CPU milliseconds of the last."""
        spent = 0.0
        while self.turns < turn:
            spent = await self.turn()
        return spent


async def settled(pid: int) -> None:
    """Wait until the recorder has done what it does after its start (the vocabulary for the store)."""
    spent = cpu_ms(pid)
    while True:
        await asyncio.sleep(0.5)
        if cpu_ms(pid) - spent < 10:
            return
        spent = cpu_ms(pid)


async def cpu_per_turn(bench: Bench) -> list[bool]:
    results = []
    for name, explicit, goal, number in (("base URL", False, 10, 1), ("explicit TLS", True, 15, 10)):
        old = await bench.conversation(number, HISTORY_TOKENS - 1500, explicit)
        await old.go_to(46)
        early, late = [], []
        for index in range(1, 7):  # a young and an old conversation take turns, so that both meet the same machine
            young = await bench.conversation(number + index, HISTORY_TOKENS - 1500, explicit)
            early.append(await young.go_to(5))
            late.append(await old.turn())
        print(f"  {name}: turn 5 at {young.tokens} tokens {statistics.median(early):.1f} ms,"
              f" turn 50 at {old.tokens} {statistics.median(late):.1f} ms", flush=True)  # fmt: skip
        results.append(report(f"CPU per turn at 30k tokens, {name}", statistics.median(early), "ms", goal))
        growth = statistics.median(late) / statistics.median(early)
        results.append(report(f"turn 50 against turn 5, {name}", growth, "times", 1.3))
    return results


async def stall_ms(bench: Bench, number: int) -> float:
    """The longest that the recorder's event loop was late while 16 first prompts arrived at once."""
    tokens = [await bench.register(number + index) for index in range(16)]
    bodies = [bench.first_body(25_000, number + index * 900) for index in range(16)]
    await bench.control("GET", "/status")
    await asyncio.gather(*(bench.call(token, body, False) for token, body in zip(tokens, bodies, strict=True)))
    return float((await bench.control("GET", "/status"))["loop_lag_max_ms"])


async def memory_mb(bench: Bench, warm: int = 10, count: int = 60) -> float:
    """What a conversation adds to the process, once its first ones have filled what earlier work had left free."""
    for number in range(warm):
        await (await bench.conversation(number, HISTORY_TOKENS - 1000)).go_to(3)
    before = resident_mb(bench.ready["pid"])
    for number in range(warm, warm + count):
        await (await bench.conversation(number, HISTORY_TOKENS - 1000)).go_to(3)
    return (resident_mb(bench.ready["pid"]) - before) / count


@asynccontextmanager
async def recorder(model_dir: Path, engine_url: str) -> AsyncGenerator[Bench]:
    """A recorder process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            "run_id": "r1",
            "run_dir": f"{scratch}/store/runs/r1",
            "engine": {"url": engine_url, "model": "policy"},
            "model_dir": str(model_dir),
            "control_secret": SECRET,
            "ca_dir": f"{scratch}/ca",
            "max_model_len": 131072,
        }
        async with child("-P", "-m", "proxy_addons") as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(settings).encode() + b"\n")
            ready = json.loads(await process.stdout.readline())
            tls = ssl.create_default_context(cafile=ready["ca_path"])
            async with aiohttp.ClientSession(json_serialize=lambda body: json.dumps(body, ensure_ascii=False)) as http:
                await settled(ready["pid"])
                yield Bench(http, ready, tls)


@asynccontextmanager
async def child(*arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A Python program that ends when its standard input closes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


async def main() -> int:
    model_dir = Path(sys.argv[1]) if len(sys.argv) > 1 else cache_dir() / "tokenizers" / "qwen3"
    fake = ROOT / "tests" / "proxy_addons" / "fake_engine.py"
    async with child(str(fake), str(model_dir), "0", ANSWER) as engine:
        assert engine.stdout
        url = (await engine.stdout.readline()).decode().strip()
        async with recorder(model_dir, url) as bench:
            results = await cpu_per_turn(bench)
            lags = [await stall_ms(bench, 1000 * attempt) for attempt in range(1, 9)]
        print(f"  stalls of eight tries: {lags} ms (other work on the machine adds to each)", flush=True)
        results.append(
            report("loop stall while 16 first prompts of 25k tokens arrive, median", statistics.median(lags), "ms", 50)
        )
        async with recorder(model_dir, url) as bench:
            results.append(report("memory per live conversation of 30k tokens", await memory_mb(bench), "MB", 0.5))
    return 0 if all(results) else 5


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
