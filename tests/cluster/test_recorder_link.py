"""The stream between a recorder's pod and this machine, without a cluster: the program at its other end is the real
one, what it follows is written by the real journal, and the stream is cut at any byte."""

import asyncio
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cluster import recorder_link
from cluster.recorder_copy import RecorderCopy
from openforge.ids import RecorderId, RunId
from openforge.journal.reader import read_records
from openforge.journal.seal import seal_abandoned
from openforge.journal.writer import JournalWriter

PROGRAM = Path(recorder_link.__file__)
RECORDER = RecorderId("recorder-abc123")
SECRET = "s" * 24


class There:
    """A recorder's folder and control face."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = JournalWriter(folder / "store/runs/r1", RECORDER, RunId("r1"), rotate_bytes=4000)
        self.asked: list[tuple[str, str, str]] = []
        self.settings = folder.parent / "settings.json"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        self.settings.write_text(json.dumps({"admin_port": port, "control_secret": SECRET}))

    async def stop(self) -> None:
        await self._runner.cleanup()
        self.journal.close()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path, await request.text()))
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        self.write(1)
        return web.json_response({"seq": self.journal._seq})

    def write(self, count: int) -> None:
        for _ in range(count):
            self.journal.append("vocab", hash=random.randbytes(random.randrange(1, 300)).hex())


class Here:
    """The copy on this machine, and what it was told."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.ready: list[tuple[dict[str, Any], Path]] = []
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.answered = asyncio.Event()
        self.copy = RecorderCopy(run_dir, run_dir / "logs/recorder.log", "ca.pem", self._ready, self._answer)

    def _ready(self, told: dict[str, Any], ca: Path) -> None:
        self.ready.append((told, ca))

    def _answer(self, number: int, status: int, body: bytes) -> None:
        self.answers[number] = (status, body)
        self.answered.set()

    def records(self) -> list[dict[str, Any]]:
        return list(read_records(self.run_dir))


class Link:
    """One life of the program and its stream."""

    def __init__(self, there: There, here: Here) -> None:
        self._there, self._here = there, here

    async def __aenter__(self) -> "Link":
        argv = (sys.executable, "-I", str(PROGRAM), "link", str(self._there.folder), str(self._there.settings))
        self._process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self.send({"have": self._here.copy.have()})
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def ask(self, number: int, method: str = "SYNC", path: str = "", body: Any = None) -> tuple[int, bytes]:
        self.send({"id": number, "method": method, "path": path, "body": body})
        async with asyncio.timeout(20):
            while number not in self._here.answers:
                self._here.answered.clear()
                await self._here.answered.wait()
        return self._here.answers[number]

    async def ended(self) -> None:
        """Nothing more comes in: it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await asyncio.wait_for(self._process.wait(), 10) == 0

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(random.choice((1, 7, 4096))):
            self._here.copy.take(data)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[There]:
    (tmp_path / "there").mkdir()
    made = There(tmp_path / "there")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path / "here/runs/r1")


async def test_whoever_has_an_answer_has_every_record_written_before_it(there: There, here: Here) -> None:
    async with Link(there, here) as link:
        for number in range(20):
            there.write(random.randrange(5))
            status, body = await link.ask(number, "POST", f"/rollouts/{number}/seal", {"attempt": 0})
            assert status == 200
            assert [record["seq"] for record in here.records()] == list(range(json.loads(body)["seq"]))
        await link.ended()
    assert there.asked[3] == ("POST", "/rollouts/3/seal", '{"attempt": 0}')
    assert here.copy.broken == ""


async def test_a_stream_that_is_cut_at_any_byte_is_taken_up_where_it_was(there: There, here: Here) -> None:
    for number in range(12):
        there.write(random.randrange(40))
        async with Link(there, here) as link:
            if number % 3 == 0:
                await link.ask(number)
            else:
                await asyncio.sleep(random.uniform(0.1, 0.4))  # wherever it is then
    there.journal.close()
    async with Link(there, here) as link:
        await link.ask(100)
    assert here.copy.broken == ""
    for path in (there.folder / "store/runs/r1/journal" / RECORDER).iterdir():
        assert (here.run_dir / "journal" / RECORDER / path.name).read_bytes() == path.read_bytes()
    assert not list(here.run_dir.rglob("*.open*"))


async def test_what_is_followed_is_not_sealed_by_others_until_it_is_let_go(there: There, here: Here) -> None:
    there.write(3)
    async with Link(there, here) as link:
        await link.ask(1)
        assert seal_abandoned(here.run_dir).live == 1
    here.copy.close()  # its pod is gone
    assert len(seal_abandoned(here.run_dir).paths) == 1
    assert len(here.records()) == 3


async def test_ready_is_told_once_with_its_authorities_and_the_log_is_added_to(there: There, here: Here) -> None:
    (here.run_dir / "logs").mkdir(parents=True)
    (here.run_dir / "logs/recorder.log").write_text("of an earlier recorder\n")
    (there.folder / "recorder.log").write_text("a warning\n")
    for number in range(2):
        async with Link(there, here) as link:
            assert await link.ask(number) == (200, b"")
            assert here.ready == []
    (there.folder / "ca").mkdir()
    (there.folder / "ca/bundle.pem").write_text("roots")
    (there.folder / "store/vocab").mkdir()
    (there.folder / f"store/vocab/{'a' * 32}.jsonl").write_text('{"token_id": 0, "text": "x"}\n')
    (there.folder / "ready").write_text('{"ready": true}\n')
    for number in range(2, 4):
        async with Link(there, here) as link:
            await link.ask(number)
    assert here.ready == [({"ready": True}, here.run_dir / "ca.pem")]
    assert (here.run_dir / "ca.pem").read_text() == "roots"
    assert (here.run_dir / "logs/recorder.log").read_text() == "of an earlier recorder\na warning\n"
    assert [path.name for path in (here.run_dir.parent.parent / "vocab").iterdir()] == [f"{'a' * 32}.jsonl"]


async def test_a_recorder_that_is_dead_is_told_as_no_answer_and_its_files_still_come(there: There, here: Here) -> None:
    there.write(2)
    await there._runner.cleanup()
    async with Link(there, here) as link:
        status, body = await link.ask(1, "GET", "/status")
        assert (status, b"refused" in body.lower()) == (599, True)
    assert len(here.records()) == 2


FRAMES: list[tuple[Callable[[], bytes], str]] = [
    (lambda: b'{"key": "journal/../../evil/000000000000", "at": 0, "size": 1}\nx', "no file is called"),
    (lambda: b'{"key": "journal/orchestrator-abc123/000000000000", "at": 0, "size": 1}\nx', "no file is called"),
    (lambda: b'{"key": "journal/recorder-abc123/000000000000", "at": 5, "size": 1}\nx', "goes on at 5"),
    (lambda: b'{"key": "log", "at": 0, "size": "many"}\n', "no recorder sends"),
    (lambda: b'{"key": "ready", "at": 0, "size": 1, "whole": true}\nx', "no recorder sends"),
    (lambda: b'{"key": "log", "at": 0, "size": 99999999999}\n', "a frame of 99999999999"),
    (lambda: b"x" * 70_000, "without a head"),
    (lambda: b"[]\n", "no recorder sends"),
]


@pytest.mark.parametrize(("frame", "said"), FRAMES)
async def test_what_no_recorder_sends_is_refused_and_lands_nowhere(
    here: Here, tmp_path: Path, frame: Callable[[], bytes], said: str
) -> None:
    here.copy.take(frame())
    assert said in here.copy.broken
    assert [
        place for place, _, names in os.walk(tmp_path) for name in names if os.stat(f"{place}/{name}").st_size
    ] == []


async def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left_out_in_silence(here: Here) -> None:
    (here.run_dir.parent).mkdir(parents=True)
    here.run_dir.write_text("not a folder")
    here.copy.take(b'{"key": "journal/recorder-abc123/000000000000", "at": 0, "size": 1}\nx')
    assert "cannot be kept here" in here.copy.broken


def test_laying_it_again_changes_nothing_and_half_of_it_is_not_taken(tmp_path: Path) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("tokenizer.json")
        entry.size = 2
        archive.addfile(entry, BytesIO(b"{}"))
    data = buffer.getvalue()
    digest = recorder_link.hashlib.sha256(data).hexdigest()

    def lay(sent: bytes) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-I", str(PROGRAM), "lay", str(tmp_path), str(len(data)), digest]
        return subprocess.run(argv, input=sent, capture_output=True, timeout=20, check=False)

    assert b"cut off" in lay(data[:-1]).stderr
    assert not (tmp_path / "model").exists()
    (tmp_path / "settings").write_text('{"a": 1}\n')
    script = (
        "import sys; from pathlib import Path; from proxy_addons.pod import prepare\n"
        "prepare(Path('settings'), Path())\nline = sys.stdin.readline()\n"
        "print(line, end='', flush=True); print('a warning', file=sys.stderr)"
    )
    root = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    waiting = subprocess.Popen([sys.executable, "-P", "-c", script], cwd=tmp_path, env=root)
    try:
        assert lay(data).returncode == 0
        assert waiting.wait(20) == 0
    finally:
        waiting.kill()
    assert (tmp_path / "model/tokenizer.json").read_text() == "{}"
    assert (tmp_path / "ready").read_text() == '{"a": 1}\n'
    assert (tmp_path / "recorder.log").read_text() == "a warning\n"
    assert lay(data).returncode == 0
