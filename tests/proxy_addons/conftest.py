"""The recorder without its proxy, in the test's own loop: real sites, real journal, real tokenizer, a fake engine."""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from openforge.ids import RecorderId, RunId
from openforge.journal.writer import JournalWriter
from proxy_addons.render.base import Renderer
from proxy_addons.render.load import load_renderer
from proxy_addons.service import Lag, assemble
from proxy_addons.settings import RecorderConfig

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import FakeEngine
from recorder_desk import SECRET, Desk


@pytest.fixture(scope="session")
def renderer(qwen3_dir: Path) -> Renderer:
    return load_renderer(qwen3_dir)


@pytest.fixture
async def engine(renderer: Renderer) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(renderer.tok.full)
    await engine.start()
    yield engine
    await engine.stop()


MakeDesk = Callable[..., Any]


@pytest.fixture
async def make_desk(tmp_path: Path, renderer: Renderer, engine: FakeEngine) -> AsyncIterator[MakeDesk]:
    closing: list[Any] = []

    async def make(with_renderer: bool = True, **settings: Any) -> Desk:
        number = len(closing)
        run_dir = tmp_path / "runs" / "r1"
        config = RecorderConfig.model_validate(
            {
                "run_id": "r1",
                "run_dir": run_dir,
                "engine": {"url": engine.url, "model": "policy", "weight_version": "w1"},
                "model_dir": "unused",
                "control_secret": SECRET,
                "ca_dir": tmp_path / "ca",
                **settings,
            }
        )
        journal = JournalWriter(run_dir, RecorderId(f"recorder-test{number}"), RunId("r1"), fsync_interval_s=60)
        parts = assemble(config, renderer if with_renderer else None, journal, Lag())
        addresses = []
        for app in (parts.site.app(), parts.control.app()):
            runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            addresses.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            closing.append(runner.cleanup)
        http = aiohttp.ClientSession()
        desk = Desk(parts, journal, run_dir, *addresses, http, engine)
        closing.extend([http.close, parts.engine.close])
        return desk

    yield make
    for close in reversed(closing):
        await close()


@pytest.fixture
async def desk(make_desk: MakeDesk) -> Desk:
    """A recorder in train mode with one rollout registered."""
    desk: Desk = await make_desk()
    assert await desk.register() == 201
    return desk
