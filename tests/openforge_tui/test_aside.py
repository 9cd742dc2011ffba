import subprocess
import sys
import time

import pytest

from openforge_tui.aside import aside


async def test_what_a_function_returns_or_raises_comes_back() -> None:
    assert await aside(lambda: 3, "three") == 3
    with pytest.raises(ZeroDivisionError):
        await aside(lambda: 1 // 0, "fault")


def test_a_question_that_hangs_keeps_no_process_from_ending() -> None:
    source = """
import asyncio, time
from openforge_tui.aside import aside
async def main():
    try:
        async with asyncio.timeout(0.2):
            await aside(lambda: time.sleep(60), "hangs")
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "given up\n", "")
    assert time.monotonic() - began < 40
