import json
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from openforge_tui.live_status import ask_all


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
            (tmp_path / "runs" / run_id / "orchestrator.json").write_text(text)
        told = await ask_all(tmp_path)
    assert told == [{"run_id": "r1", "rollouts": {"running": 2}, "calls": [], "pid": 42}]


async def test_an_empty_store_is_asked_nothing(tmp_path: Path) -> None:
    assert await ask_all(tmp_path) == []
