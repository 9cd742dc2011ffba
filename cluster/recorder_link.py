"""What runs beside a recorder in its pod, on one stream to the host: requests go in, answers and new bytes come out.

Standard library only; it knows nothing of OpenForge but where the recorder's files are. An answer comes after every
byte that was in those files when the recorder gave it, so whoever has the answer has the records, too. The stream may
be cut at any moment: this process ends then, and the next one is told what is on the other side already.

A frame is a line of JSON, whose `size` says how many bytes follow it.
"""

import asyncio
import ctypes
import hashlib
import http.client
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_CHUNK_BYTES = 256 << 10
_GATHER_S, _ALIVE_S, _ANSWER_S = 0.05, 10.0, 25.0
_CHANGES = 0x2 | 0x80 | 0x100  # IN_MODIFY, IN_MOVED_TO, IN_CREATE
_OPEN, _SEALED = ".jsonl.open", ".jsonl"


class File(NamedTuple):
    """`key` is its name on the other side; `whole`: nothing more will be added."""

    key: str
    path: Path
    whole: bool


def files(folder: Path) -> Iterator[File]:
    """What is to be sent, the ready line last: whoever has it has what it speaks of."""
    yield File("log", folder / "recorder.log", False)
    for segment in sorted(folder.glob("store/runs/*/journal/*/*.jsonl*")):
        stem = segment.name.removesuffix(".open").removesuffix(_SEALED)
        if segment.name in (stem + _OPEN, stem + _SEALED):
            yield File(f"journal/{segment.parent.name}/{stem}", segment, segment.name.endswith(_SEALED))
    for vocabulary in folder.glob("store/vocab/*.jsonl"):
        yield File(f"vocab/{vocabulary.stem}", vocabulary, True)
    ready = folder / "ready"
    if ready.exists() and ready.read_bytes().endswith(b"\n"):
        yield File("ca", folder / "ca" / "bundle.pem", True)
        yield File("ready", ready, True)


class Shipment:
    """Sends what is new to a descriptor. `have`: how much of each file is on the other side."""

    def __init__(self, folder: Path, out: int, have: dict[str, int]) -> None:
        self._folder, self._out, self._sent = folder, out, dict(have)
        self._ended: set[str] = set()

    def ship(self) -> None:
        for file in files(self._folder):
            if file.key not in self._ended:
                with suppress(FileNotFoundError):  # renamed since it was listed: its new name tells of a change
                    self._send(file)

    def frame(self, data: bytes = b"", **head: Any) -> None:
        view = memoryview(json.dumps({**head, "size": len(data)}).encode() + b"\n" + data)
        while view:
            view = view[os.write(self._out, view) :]

    def _send(self, file: File) -> None:
        sent = self._sent.get(file.key, 0)
        with file.path.open("rb", buffering=0) as source:
            source.seek(sent)
            while data := source.read(_CHUNK_BYTES):
                self.frame(data, key=file.key, at=sent)
                sent += len(data)
        self._sent[file.key] = sent
        if file.whole:
            self.frame(key=file.key, at=sent, whole=True)
            self._ended.add(file.key)


class Changes:
    """Told by the kernel when something below a folder changes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._libc = folder, ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self.look()

    def look(self) -> None:
        """Watch the folders that are new, before what is in them is looked at."""
        for place, folders, _ in os.walk(self._folder):
            self._libc.inotify_add_watch(self.descriptor, place.encode(), _CHANGES)
            folders[:] = [name for name in folders if name not in ("model", "ca")]

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 1 << 16):
                pass


async def link(folder: Path, port: int, secret: str) -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    hello = json.loads(await requests.readline() or b"{}")
    shipment = Shipment(folder, 1, hello.get("have", {}))
    changes = Changes(folder)
    due: list[asyncio.TimerHandle] = []
    alive = folder / "alive"

    def ship() -> None:
        due.clear()
        changes.drain()
        changes.look()
        shipment.ship()

    def changed() -> None:
        changes.drain()
        if not due:  # many records in a row are one look
            due.append(loop.call_later(_GATHER_S, ship))

    async def answer(asked: dict[str, Any]) -> None:
        status, body = 200, b""
        if asked["method"] != "SYNC":
            status, body = await asyncio.to_thread(_ask, port, secret, asked)
        changes.look()
        shipment.ship()
        shipment.frame(body, answer=asked["id"], status=status)

    async def live() -> None:
        while True:
            alive.touch()  # the recorder ends when this gets old, see proxy_addons/pod.py
            await asyncio.sleep(_ALIVE_S)
            shipment.frame()  # a stream that was cut is found out by writing

    loop.add_reader(changes.descriptor, changed)
    ship()
    async with asyncio.TaskGroup() as tasks:
        living = tasks.create_task(live())
        while line := await requests.readline():
            tasks.create_task(answer(json.loads(line)))
        living.cancel()


def _ask(port: int, secret: str, asked: dict[str, Any]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        body = None if asked.get("body") is None else json.dumps(asked["body"])
        connection.request(asked["method"], asked["path"], body, {"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 599, repr(error).encode()
    finally:
        connection.close()


def lay(folder: Path, size: int, digest: str) -> None:
    """Take the tokenizer, a tar on standard input, and give the recorder its start. Doing it again changes nothing."""
    data = sys.stdin.buffer.read(size)
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        sys.exit(f"cut off: {len(data)} of {size} bytes came, or they are not what was sent")
    if (folder / "started").exists():
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder / "model", filter="data")
    gate = folder / "start"
    with suppress(FileExistsError):
        os.mkfifo(gate)
    os.close(os.open(gate, os.O_WRONLY))


def main() -> None:
    word, folder, *given = sys.argv[1:]
    if word == "lay":
        lay(Path(folder), int(given[0]), given[1])
    elif word == "link":
        settings = json.loads(Path(given[0]).read_bytes())
        with suppress(BrokenPipeError):
            asyncio.run(link(Path(folder), settings["admin_port"], settings["control_secret"]))
    else:
        sys.exit(f"no such word: {word}")


if __name__ == "__main__":
    main()
