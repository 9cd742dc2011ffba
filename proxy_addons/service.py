"""One recorder process: everything put together, started, watched and stopped in one event loop."""

import asyncio
import ctypes
import gc
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from mitmproxy.addons.core import Core
from mitmproxy.addons.next_layer import NextLayer
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.master import Master
from mitmproxy.options import Options

from openforge.errors import InfraError
from openforge.ids import RunId, new_recorder_id
from openforge.journal.records import JournalError
from openforge.journal.writer import JournalWriter
from proxy_addons import ca
from proxy_addons.addon import Addon
from proxy_addons.control import Control
from proxy_addons.engines.base import EngineError
from proxy_addons.engines.openai import Provider
from proxy_addons.engines.trainer import LivePolicy
from proxy_addons.engines.vllm import Vllm
from proxy_addons.ledger import Ledger
from proxy_addons.prompts import Prompts
from proxy_addons.record import Record
from proxy_addons.render.base import Renderer
from proxy_addons.render.load import load_renderer, write_vocab
from proxy_addons.rollouts import Registry, State
from proxy_addons.settings import RecorderConfig
from proxy_addons.site import Site
from proxy_addons.train import Train

log = logging.getLogger("openforge.recorder")

_DAY_S = 86_400
_GC_EVERY = 20_000  # objects; a long request alone makes a thousand, and nearly all die with it
_SWITCH_S = 0.001  # how long the rendering thread may hold the interpreter while the loop waits


class Lag:
    """How late the event loop was at worst: what every other call had to wait."""

    def __init__(self, interval_s: float = 0.02) -> None:
        self._interval_s = interval_s
        self.max_ms = 0.0

    async def watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(self._interval_s)
            self.max_ms = max(self.max_ms, 1000 * (time.monotonic() - before - self._interval_s))

    def take(self) -> float:
        """The worst since the last time it was asked."""
        worst, self.max_ms = self.max_ms, 0.0
        return round(worst, 2)


@dataclass(frozen=True)
class Parts:
    """The recorder without its proxy: what tests put together as well."""

    registry: Registry
    ledger: Ledger
    engine: Vllm | LivePolicy | Provider
    site: Site
    control: Control
    relay_secret: str


def assemble(config: RecorderConfig, renderer: Renderer | None, journal: JournalWriter, lag: Lag) -> Parts:
    """Everything between the two HTTP faces and the journal. Needs a running event loop."""
    registry, ledger, prompts = Registry(), Ledger(journal, config.mode), Prompts(renderer)
    engine: Vllm | LivePolicy | Provider
    answering: Train | Record
    if config.mode == "train":
        assert renderer is not None  # settings.py holds it
        sampler = LivePolicy if config.engine.kind == "trainer" else Vllm
        engine = sampler(config.engine, config.sampling, renderer.stop_ids, renderer.vocab_size)
        answering = Train(config, renderer, prompts, engine, ledger)
    else:
        engine = Provider(config.engine)
        answering = Record(engine, prompts, renderer, ledger)
    relay_secret = secrets.token_urlsafe(32)
    site = Site(
        registry,
        ledger,
        answering,
        relay_secret=relay_secret,
        model=config.engine.model,
        keep_alive_s=config.keep_alive_s,
        max_body_bytes=config.max_body_bytes,
    )

    def counters() -> dict[str, Any]:
        return {
            "recorder_id": journal.recorder_id,
            "mode": config.mode,
            "full_renders": prompts.full_renders,
            "bridges": prompts.bridges,
            "malformed": answering.malformed if isinstance(answering, Train) else 0,
            "unread": answering.unread if isinstance(answering, Record) else 0,
            "engine_retries": 0 if isinstance(engine, Provider) else engine.retries,
            "engine_busy": engine.busy if isinstance(engine, LivePolicy) else 0,
            "client_gone": site.client_gone,
            "loop_lag_max_ms": lag.take(),
        }

    vocab_size = renderer.vocab_size if renderer else None
    control = Control(
        registry,
        ledger,
        secret=config.control_secret,
        vocab_size=vocab_size,
        counters=counters,
        live=engine if isinstance(engine, LivePolicy) else None,
    )
    return Parts(registry, ledger, engine, site, control, relay_secret)


class Recorder:
    def __init__(self, config: RecorderConfig) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self._lag = Lag()

    async def run(self, announce: Callable[[dict[str, Any]], None]) -> None:
        """Serve until SIGTERM, SIGINT, or the end of standard input. Raises ConfigError or InfraError at the start."""
        config = self._config
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        threading.Thread(target=self._await_parent, args=(loop,), name="parent", daemon=True).start()
        bundle = ca.prepare(config.ca_dir)
        renderer = self._renderer()
        recorder_id = new_recorder_id("recorder")
        interval_s = 0.0 if config.durability == "fsync" else 1.0
        journal = JournalWriter(config.run_dir, recorder_id, RunId(config.run_id), fsync_interval_s=interval_s)
        parts = assemble(config, renderer, journal, self._lag)
        try:
            await _probe(parts, renderer)
        except EngineError:
            await parts.engine.close()
            journal.close()
            raise
        runners = [
            web.AppRunner(parts.site.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1),
            web.AppRunner(parts.control.app(), access_log=None, shutdown_timeout=1),
        ]
        lag = asyncio.create_task(self._lag.watch())
        site_port = await _listen(runners[0], config.host, config.site_port)
        admin_port = await _listen(runners[1], config.admin_host, config.admin_port)
        inner = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
        addon = Addon(parts.registry, parts.ledger, config.hosts, (inner, site_port), parts.relay_secret)
        master = _master(config, addon)
        proxying = asyncio.create_task(master.run())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            proxy_port = await _proxy_port(master, proxying)
            _settle()
            announce(
                {
                    "ready": True,
                    "recorder_id": recorder_id,
                    "proxy_port": proxy_port,
                    "site_port": site_port,
                    "admin_port": admin_port,
                    "ca_path": str(bundle),
                    "pid": os.getpid(),
                }
            )
            if renderer is not None:
                await self._name_tokens(renderer, journal)
            await asyncio.wait({stopping, proxying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for rollout in parts.registry:
                rollout.end(State.DROPPED)
            await asyncio.sleep(0)  # the ended calls write their abort
            for runner in runners:
                await runner.cleanup()
            master.shutdown()
            await asyncio.wait({proxying}, timeout=5)
            lag.cancel()
            stopping.cancel()
            await parts.engine.close()
            journal.close()

    def _renderer(self) -> Renderer | None:
        config = self._config
        if config.model_dir is None:
            return None
        return load_renderer(config.model_dir, config.renderer, config.enable_thinking)

    async def _name_tokens(self, renderer: Renderer, journal: JournalWriter) -> None:
        """What each id says, for people who ask the store. Nothing waits for it."""
        try:
            name = await asyncio.to_thread(write_vocab, renderer, self._config.run_dir.parent.parent / "vocab")
            journal.append("vocab", hash=name)
        except (OSError, JournalError) as problem:
            log.warning("the vocabulary is not in the store: %s", problem)

    def _await_parent(self, loop: asyncio.AbstractEventLoop) -> None:
        while os.read(0, 1 << 16):  # sys.stdin has a lock that a process which ends meanwhile dies of
            pass
        loop.call_soon_threadsafe(self._stop.set)


def _settle() -> None:
    """What start-up made stays: collecting it again and again would stall the loop, and what it freed goes back."""
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(_GC_EVERY)
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


async def _probe(parts: Parts, renderer: Renderer | None) -> None:
    """Raises EngineError when the engine is up and its answers could not be recorded."""
    if not isinstance(parts.engine, Vllm) or renderer is None:
        return
    try:
        info = await parts.engine.probe(renderer.stop_ids[0])
    except EngineError as problem:
        if problem.error_class != "engine_unreachable":
            raise
        log.warning("the engine is not up yet: %s", problem.summary)
        return
    parts.site.fit(info.max_model_len)


async def _listen(runner: web.AppRunner, host: str, port: int) -> int:
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=1024).start()
    return int(runner.addresses[0][1])


def _master(config: RecorderConfig, addon: Addon) -> Master:
    options = Options(
        confdir=str(config.ca_dir),
        listen_host=config.host,
        listen_port=config.proxy_port,
        mode=["regular"],
        showhost=False,
        upstream_cert=False,
    )
    master = Master(options)
    # only what a proxy needs: every hook visits every addon, and the default set has forty
    master.addons.add(Core(), Proxyserver(), NextLayer(), TlsConfig(), addon)
    master.options.update(connection_strategy="lazy", tcp_timeout=_DAY_S)
    return master


async def _proxy_port(master: Master, proxying: "asyncio.Task[None]") -> int:
    server: Proxyserver = master.addons.get("proxyserver")
    for _ in range(2000):
        if server.listen_addrs():
            return int(server.listen_addrs()[0][1])
        if proxying.done():
            break
        await asyncio.sleep(0.005)
    raise InfraError("the proxy could not listen", hint="is proxy_port free?")
