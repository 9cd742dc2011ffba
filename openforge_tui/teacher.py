"""The teacher as a child process: a scripted policy for harness checks and demonstrations."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from openforge.errors import InfraError

_READY_S = 30.0
_ROOT = Path(__file__).resolve().parent.parent


@asynccontextmanager
async def teacher(tasks: Sequence[str]) -> AsyncIterator[str]:
    """The base URL of a teacher that knows `tasks`; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy_addons.teacher"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(orjson.dumps({"tasks": list(tasks)}) + b"\n")
        await process.stdin.drain()
        line = await asyncio.wait_for(process.stdout.readline(), _READY_S)
        if not line:
            raise InfraError("the teacher did not start", hint="what it said stands above")
        yield str(orjson.loads(line)["url"])
    finally:
        process.stdin.close()  # which is how it learns to end
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
