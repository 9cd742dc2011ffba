"""`python -P -m proxy_addons`: one JSON line in (settings.py), one JSON line out when ready, logs on stderr.

Ends on SIGTERM and when standard input closes, which is how it learns that its parent died. `-P` keeps files in the
working directory from being imported as packages.
"""

import asyncio
import logging
import os
import sys
from typing import Any

import orjson
from pydantic import ValidationError

from openforge.errors import OpenForgeError
from proxy_addons.settings import RecorderConfig


def main() -> int:
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not stand where the ready line is expected
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = RecorderConfig.model_validate_json(sys.stdin.buffer.readline())
    except ValidationError as problem:
        for fault in problem.errors(include_input=False, include_url=False):
            print(f"recorder settings: {'.'.join(map(str, fault['loc']))}: {fault['msg']}", file=sys.stderr)
        return 2
    from proxy_addons.service import Recorder  # mitmproxy and renderers take a second: settings are checked first

    def announce(ready: dict[str, Any]) -> None:
        os.write(out, orjson.dumps(ready) + b"\n")

    async def serve() -> None:
        await Recorder(config).run(announce)

    try:
        asyncio.run(serve())
    except OpenForgeError as problem:
        print(f"recorder: {problem.summary}" + (f" ({problem.hint})" if problem.hint else ""), file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
