"""Slow questions beside the app: a thread that nobody waits for when the app ends.

Programs that are asked may hang, and the threads of a pool are joined before a process can end; the store's threads
(reader.py) stay free for the store.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


async def aside[T](function: Callable[[], T], name: str) -> T:
    """What `function` returns or raises."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(give: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the app has ended
            loop.call_soon_threadsafe(lambda: None if answer.done() else give())

    def run() -> None:
        try:
            found = function()
        except Exception as error:
            failure = error
            tell(lambda: answer.set_exception(failure))
        else:
            tell(lambda: answer.set_result(found))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await answer
