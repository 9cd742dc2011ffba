"""The orchestrator's HTTP face, for a trainer and for scripts: rollouts are asked for, waited for, cancelled, read.

On loopback, behind a token, always. Where it listens and its token stand in `orchestrator.json` in the run's folder,
readable by this user only. Samples are read from the journal, so that what is answered is what was recorded.
"""

import asyncio
import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from cluster.orchestrator import Orchestrator
from cluster.rollout import account_of
from cluster.roster import ConflictError
from openforge.errors import OpenForgeError, UsageError
from openforge.harness import BUILTIN_ROOT, load_harness
from openforge.ids import RolloutId
from openforge.task import load_tasks

FILE_NAME = "orchestrator.json"
_MAX_WAIT_S = 60.0
_FILTERS = {"purpose", "step", "group", "task", "harness", "state", "key"}
_MAX_BODY_BYTES = 16 << 20  # a step names its rollouts


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RolloutRequest(_Request):
    """`seed` is of the start files; without it the run's own rule holds. Without `sample` the next free number is
    taken. Asked again with the same `key` it is the same rollout."""

    task: str
    harness: str
    sample: int | None = Field(default=None, ge=0)
    seed: int | None = None
    key: str | None = Field(default=None, min_length=1, max_length=200)
    purpose: Literal["train", "eval"] | None = None
    step: int | None = Field(default=None, ge=0)
    group: str | None = Field(default=None, min_length=1, max_length=200)


class PolicyRequest(_Request):
    """`token` is what the addresses want to see; it is passed on and told to nobody else."""

    addresses: tuple[str, ...] = Field(min_length=1)
    token: str = ""
    weight_version: str = Field(min_length=1)


class MetricsRequest(_Request):
    step: int = Field(ge=0)
    metrics: dict[str, FiniteFloat]


class StepRequest(_Request):
    """An update that was made: what it learned from, and the version of the weights that it made."""

    step: int = Field(ge=0)
    weight_version: str = Field(min_length=1)
    rollouts: tuple[str, ...]
    samples: int = Field(ge=0)
    staleness_max: int | None = Field(default=None, ge=0)


class TrainerRequest(_Request):
    """A trainer begins, or begins again, from the checkpoint of a step (0 = from the start)."""

    from_step: int = Field(ge=0)
    pid: int = Field(ge=0)


class HttpFace:
    """Use as `async with`; serves until it is left. `roots`: where a harness's name is looked for."""

    def __init__(self, orchestrator: Orchestrator, roots: Sequence[Path] = (BUILTIN_ROOT,)) -> None:
        self._orchestrator, self._roots = orchestrator, roots
        self.token = secrets.token_urlsafe(32)
        self.url = ""
        self._file = orchestrator.run_dir / FILE_NAME

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self._app(), access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        _write_private(self._file, {"url": self.url, "token": self.token, "pid": os.getpid()})
        return self

    async def __aexit__(self, *_: object) -> None:
        _forget(self._file)
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/rollouts", self._submit)
        app.router.add_get("/rollouts", self._list)
        app.router.add_delete("/rollouts", self._cancel_all)
        app.router.add_post("/drain", self._drain)
        app.router.add_put("/pause", self._pause)
        app.router.add_delete("/pause", self._pause)
        app.router.add_get("/rollouts/{id}", self._look)
        app.router.add_delete("/rollouts/{id}", self._cancel)
        app.router.add_get("/rollouts/{id}/samples", self._samples)
        app.router.add_put("/policies/{name}", self._policy)
        app.router.add_delete("/policies/{name}", self._drop_policy)
        app.router.add_post("/trainer", self._trainer)
        app.router.add_post("/steps", self._step)
        app.router.add_post("/metrics", self._metrics)
        app.router.add_get("/status", self._status)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        told = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(told, f"Bearer {self.token}".encode()):
            return _answer(401, {"error": "the orchestrator's token is needed here"})
        try:
            return await handler(request)
        except ValidationError as error:
            return _answer(
                400, {"error": "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())}
            )
        except ConflictError as error:
            return _answer(409, {"error": error.summary, "hint": error.hint})
        except UsageError as error:
            return _answer(404, {"error": error.summary, "hint": error.hint})
        except OpenForgeError as error:
            return _answer(503, {"error": error.summary, "hint": error.hint})

    async def _submit(self, request: web.Request) -> web.Response:
        asked = RolloutRequest.model_validate_json(await request.read())
        tasks = load_tasks([asked.task])
        if len(tasks) != 1:
            raise UsageError(f"{asked.task!r} names {len(tasks)} tasks; a rollout has one")
        wanted = asked.model_dump(exclude={"task", "harness"})
        spec = self._orchestrator.roster.spec(tasks[0], load_harness(asked.harness, self._roots), **wanted)
        return _answer(202, account_of(await self._orchestrator.submit(spec)))

    async def _list(self, request: web.Request) -> web.Response:
        query = request.query
        if unknown := set(query) - _FILTERS:
            raise UsageError(
                f"rollouts cannot be listed by {', '.join(sorted(unknown))}", hint=f"by {', '.join(sorted(_FILTERS))}"
            )
        told = [
            account
            for account in self._orchestrator.roster.accounts()
            if all(str(getattr(account, name)) == text for name, text in query.items())
        ]
        return _answer(200, {"rollouts": told})

    async def _look(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        rollout = self._orchestrator.rollouts.get(RolloutId(name))
        try:
            wait_s = min(max(0.0, float(request.query.get("wait", "0"))), _MAX_WAIT_S)
        except ValueError as error:
            raise UsageError("wait must be a number of seconds") from error
        if rollout is not None:
            with suppress(TimeoutError):  # not over yet: the answer says in which state it is
                await asyncio.wait_for(rollout.finished.wait(), wait_s)
        return _answer(200, self._orchestrator.roster.find(name))

    async def _cancel_all(self, request: web.Request) -> web.Response:
        if request.query.get("run") == "cancelled":  # a trainer at its end says nothing of the kind
            self._orchestrator.cancelled = True
        ended = await self._orchestrator.cancel_all()
        return _answer(200, {"rollouts": [account_of(rollout) for rollout in ended]})

    async def _drain(self, request: web.Request) -> web.Response:
        going_on = await self._orchestrator.drain()
        return _answer(200, {"rollouts": [account_of(rollout) for rollout in going_on]})

    async def _pause(self, request: web.Request) -> web.Response:
        going_on = self._orchestrator.pause(request.method == "PUT")
        told = {"run_id": self._orchestrator.run_id, "state": self._orchestrator.state, "running": len(going_on)}
        return _answer(200, told)

    async def _cancel(self, request: web.Request) -> web.Response:
        account = self._orchestrator.roster.find(request.match_info["id"])
        if account.finished:
            return _answer(200, account)
        return _answer(200, account_of(await self._orchestrator.cancel(account.rollout_id)))

    async def _samples(self, request: web.Request) -> web.Response:
        account = self._orchestrator.roster.find(request.match_info["id"])
        rows = await asyncio.to_thread(self._orchestrator.index.samples, account.rollout_id, account.attempt)
        return _answer(200, {**asdict(account), "samples": rows})

    async def _policy(self, request: web.Request) -> web.Response:
        asked = PolicyRequest.model_validate_json(await request.read())
        await self._orchestrator.set_policy(request.match_info["name"], **asked.model_dump())
        return _answer(200, asked.model_dump(mode="json", exclude={"token"}))

    async def _drop_policy(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        await self._orchestrator.drop_policy(name)
        return _answer(200, {"name": name})

    async def _trainer(self, request: web.Request) -> web.Response:
        asked = TrainerRequest.model_validate_json(await request.read())
        return _answer(200, await self._orchestrator.trainer_started(asked.from_step, asked.pid))

    async def _step(self, request: web.Request) -> web.Response:
        asked = StepRequest.model_validate_json(await request.read())
        for name in asked.rollouts:
            self._orchestrator.roster.find(name)
        self._orchestrator.training.step(**asked.model_dump())
        return _answer(200, {"step": asked.step})

    async def _metrics(self, request: web.Request) -> web.Response:
        asked = MetricsRequest.model_validate_json(await request.read())
        self._orchestrator.training.metrics(asked.step, asked.metrics)
        return _answer(200, {"step": asked.step, "metrics": len(asked.metrics)})

    async def _status(self, request: web.Request) -> web.Response:
        return _answer(200, await self._orchestrator.status())


def _answer(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def _write_private(path: Path, value: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
