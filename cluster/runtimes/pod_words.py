"""The words that the host executes in a rollout's pod, to ask PID 1 for something or to do it at once.

Standard library only, Python 3.11, and big modules only where they are used: each word is a process that lives for
moments. It may be cut off at any of them: what it asked for goes on and is asked for again.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # left out by -I

from cluster.runtimes.pod_protocol import END, HEADER, SOCKET, UNTRUSTED, WORK

_CONNECT_S = 0.5


def ask(request: dict[str, Any]) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(SOCKET))
    link.sendall(json.dumps(request).encode() + b"\n")
    return link


def exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


def relay(link: socket.socket) -> None:
    """PID 1's frames: output to standard output, the end to standard error."""
    while True:
        head = exactly(link, HEADER)
        data = exactly(link, int.from_bytes(head[1:], "big"))
        if head[:1] == END:
            sys.stderr.buffer.write(data)
            return
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def take(size: int, digest: str) -> dict[str, Any]:
    """Read what the host sends, `size` bytes: a tar of files to lay down, whose member `plan.json` says the rest."""
    import hashlib
    import io
    import tarfile

    data = sys.stdin.buffer.read(size)
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        sys.exit(f"cut off: {len(data)} of {size} bytes came, or they are not what was sent")
    plan: dict[str, Any] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.name == "plan.json":
                file = archive.extractfile(member)
                plan = json.loads(file.read()) if file else {}
            else:
                archive.extract(member, "/")
    return plan


def ready(forbidden: list[tuple[str, int]], needed: list[tuple[str, int]], patience_s: float) -> dict[str, Any]:
    """Wait until all that is needed answers, and then until nothing forbidden does.

    In this order: a new pod's network may be slow to come, and silence before it has come proves nothing.
    """
    began, tries = time.monotonic(), 0
    while True:
        tries += 1
        closed = [f"{host}:{port}" for host, port in needed if not answers(host, port, 2.0)]
        opened = [f"{host}:{port}" for host, port in forbidden if not closed and answers(host, port, _CONNECT_S)]
        waited_s = time.monotonic() - began
        if not (opened or closed) or waited_s > patience_s:
            return {"open": opened, "closed": closed, "tries": tries, "waited_s": round(waited_s, 3)}
        time.sleep(0.05)


def set_up(script: str, work: str, orig: str, copies: list[list[str]]) -> None:
    """Make the start files (without a script they are the image's own), keep an untouched copy of them, and put skills
    where the harness looks."""
    import subprocess

    from cluster.beneath import copy_beneath
    from cluster.runtimes.pod_image import START

    if script and (code := subprocess.run(["bash", script], check=False).returncode):
        sys.exit(code)
    for source, target in ((work, orig),) if script else ((str(START), work), (work, orig)):
        if entries := [entry.path for entry in os.scandir(source)]:  # not the folder: it is a volume, and not ours
            with our_tools():
                subprocess.run(["cp", "-a", "--", *entries, target], check=True)
    for source, target in copies:
        copy_beneath(Path(work), source, target)


def verify(script: str, work: str, removed: str) -> None:
    """Take out of the work what could lead a verifier astray, say what that was, then be the verifier."""
    WORK.write_text(work)
    Path(removed).write_text(json.dumps(clean(work)[:20]))
    os.execvp("bash", ["bash", script])


def clean(work: str) -> list[str]:
    from cluster.worktree import clean_work

    with our_tools():
        return clean_work(Path(work), work)


@contextmanager
def our_tools() -> Iterator[None]:
    """Copy and remove with our own programs: an image may have none, or some that take other options."""
    from cluster.runtimes.pod_image import TOOLS

    path = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{TOOLS}:{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


def answers(host: str, port: int, within_s: float) -> bool:
    try:
        with socket.create_connection((host, port), within_s):
            return True
    except OSError:
        return False


def main() -> None:
    word, *given = sys.argv[1:]
    if word == "ready":
        told = json.loads(given[0])
        print(json.dumps(ready(told["forbidden"], told["needed"], told["patience_s"])))
    elif word == "run":
        relay(ask({"word": "run", "plan": take(int(given[0]), given[1])}))
    elif word == "attach":
        relay(ask({"word": "attach", "id": given[0], "offset": int(given[1])}))
    elif word == "untrusted":
        ask({"word": "untrusted", "plan": json.loads(given[0])}).recv(16)
    elif word == "ask-untrusted":
        from cluster.runtimes.untrusted_client import ask as run_untrusted

        code = run_untrusted(UNTRUSTED, given)
        clean(WORK.read_text())
        sys.exit(code)
    elif word == "set-up":
        set_up(given[0], given[1], given[2], json.loads(given[3]))
    elif word == "fingerprint":
        from cluster.worktree import fingerprint

        print(fingerprint(Path(given[0])))
    elif word == "verify":
        verify(*given)
    else:
        sys.exit(f"no such word: {word}")


if __name__ == "__main__":
    main()
