import json
import shutil
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from cluster.run_lock import RunLock
from openforge_tui.in_flight import InFlight
from openforge_tui.live_status import ask_all
from openforge_tui.orchestrators import pid_of
from tests.openforge_tui.fake_orchestrator import FakeOrchestrator


async def _status(request: web.Request) -> web.Response:
    if request.headers["authorization"] != "Bearer right":
        return web.json_response({"error": "the orchestrator's token is needed here"}, status=401)
    return web.json_response({"run_id": "r1", "rollouts": {"running": 2}, "calls": []})


async def test_every_run_that_answers_is_told_with_its_process(tmp_path: Path) -> None:
    app = web.Application()
    app.router.add_get("/status", _status)
    async with TestServer(app, host="127.0.0.1") as server:
        url = str(server.make_url("")).rstrip("/")
        faces = {
            "r1": json.dumps({"url": url, "token": "right", "pid": 42}),
            "r2": json.dumps({"url": url, "token": "wrong", "pid": 43}),
            "r3": json.dumps({"url": "http://127.0.0.1:9", "token": "right", "pid": 44}),  # nobody is there any more
            "r4": "{half",
            "r5": "{}",
            "r6": "[]",
            "r7": "[" * 100_000,
        }
        for run_id, text in faces.items():
            (tmp_path / "runs" / run_id).mkdir(parents=True)
            RunLock(tmp_path / "runs" / run_id).take()
            (tmp_path / "runs" / run_id / "orchestrator.json").write_text(text)
        told = await ask_all(tmp_path)
    assert told == [{"run_id": "r1", "rollouts": {"running": 2}, "calls": [], "pid": 42}]


async def test_a_copied_store_tells_nothing_of_the_run_that_goes_on_in_the_first(tmp_path: Path) -> None:
    fake = FakeOrchestrator(tmp_path / "first", "r1")
    await fake.start()
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    assert [told["run_id"] for told in await ask_all(tmp_path / "first")] == ["r1"]
    assert await ask_all(tmp_path / "copy") == []
    watch = InFlight(tmp_path / "copy")
    [standing] = await watch.look()
    assert (standing.fresh, standing.process, standing.trouble) == (False, False, "")
    assert fake.asked == 1
    assert pid_of(tmp_path / "first", "r1") == fake.pid
    assert pid_of(tmp_path / "copy", "r1") is None
    await watch.close()
    await fake.end()


async def test_an_empty_store_is_asked_nothing(tmp_path: Path) -> None:
    assert await ask_all(tmp_path) == []
