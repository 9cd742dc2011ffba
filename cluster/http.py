"""The orchestrator's HTTP face, for a trainer and for scripts: rollouts are asked for, waited for, cancelled, read.

On loopback, behind a token, always. Where it listens and its token stand in `orchestrator.json` in the run's folder,
readable by this user only. Samples are read from the journal, so that what is answered is what was recorded.
"""

import asyncio
import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.attempt import RolloutSpec
from cluster.orchestrator import Orchestrator, Rollout
from openforge.errors import OpenForgeError, UsageError
from openforge.harness import load_harness
from openforge.ids import RolloutId
from openforge.journal.reader import read_records
from openforge.task import load_tasks

FILE_NAME = "orchestrator.json"
_MAX_WAIT_S = 60.0


class RolloutRequest(BaseModel):
    """`seed` is of the start files; without it the run's own rule holds."""

    model_config = ConfigDict(extra="forbid")

    task: str
    harness: str
    sample: int = Field(default=0, ge=0)
    seed: int | None = None


class PolicyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    addresses: tuple[str, ...] = Field(min_length=1)
    weight_version: str = Field(min_length=1)


class HttpFace:
    """Use as `async with`; serves until it is left."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._orchestrator = orchestrator
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
        app = web.Application(middlewares=[self._guard])
        app.router.add_post("/rollouts", self._submit)
        app.router.add_get("/rollouts/{id}", self._look)
        app.router.add_delete("/rollouts/{id}", self._cancel)
        app.router.add_get("/rollouts/{id}/samples", self._samples)
        app.router.add_put("/policies/{name}", self._policy)
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
        except UsageError as error:
            return _answer(404, {"error": error.summary, "hint": error.hint})
        except OpenForgeError as error:
            return _answer(503, {"error": error.summary, "hint": error.hint})

    async def _submit(self, request: web.Request) -> web.Response:
        asked = RolloutRequest.model_validate_json(await request.read())
        tasks = load_tasks([asked.task])
        if len(tasks) != 1:
            raise UsageError(f"{asked.task!r} names {len(tasks)} tasks; a rollout has one")
        seed = self._orchestrator.config.run.seed + asked.sample if asked.seed is None else asked.seed
        spec = RolloutSpec(tasks[0], load_harness(asked.harness), asked.sample, seed)
        return _answer(202, view(await self._orchestrator.submit(spec)))

    async def _look(self, request: web.Request) -> web.Response:
        rollout = self._find(request)
        try:
            wait_s = min(max(0.0, float(request.query.get("wait", "0"))), _MAX_WAIT_S)
        except ValueError as error:
            raise UsageError("wait must be a number of seconds") from error
        with suppress(TimeoutError):  # not over yet: the answer says in which state it is
            await asyncio.wait_for(rollout.finished.wait(), wait_s)
        return _answer(200, view(rollout))

    async def _cancel(self, request: web.Request) -> web.Response:
        return _answer(200, view(await self._orchestrator.cancel(self._find(request).id)))

    async def _samples(self, request: web.Request) -> web.Response:
        rollout = self._find(request)
        rows = await asyncio.to_thread(_read_samples, self._orchestrator.run_dir, rollout.id, rollout.attempt)
        return _answer(200, {**view(rollout), "samples": rows})

    async def _policy(self, request: web.Request) -> web.Response:
        asked = PolicyRequest.model_validate_json(await request.read())
        policy = self._orchestrator.policies[request.match_info["name"]] = asked.model_dump(mode="json")
        return _answer(200, policy)

    async def _status(self, request: web.Request) -> web.Response:
        return _answer(200, await self._orchestrator.status())

    def _find(self, request: web.Request) -> Rollout:
        rollout = self._orchestrator.rollouts.get(RolloutId(request.match_info["id"]))
        if rollout is None:
            raise UsageError(f"no rollout {request.match_info['id']!r} in run {self._orchestrator.run_id}")
        return rollout


def view(rollout: Rollout) -> dict[str, Any]:
    """A rollout as the face tells it."""
    result, sealed = rollout.result, rollout.result.sealed
    return {
        "rollout_id": rollout.id,
        "state": rollout.state,
        "finished": rollout.finished.is_set(),
        "attempt": rollout.attempt,
        "task": rollout.spec.task.ref,
        "harness": rollout.spec.harness.name,
        "sample": rollout.spec.sample,
        "seed": rollout.spec.seed,
        "reward": rollout.reward,
        "error_class": result.error_class,
        "detail": result.detail,
        "exit_code": result.exit.code if result.exit is not None else None,
        "duration_s": rollout.duration_s,
        "calls": sealed.calls if sealed is not None else None,
        "completion_tokens": sealed.completion_tokens if sealed is not None else None,
    }


def _read_samples(run_dir: Path, name: str, attempt: int) -> list[dict[str, Any]]:
    header = {"v", "seq", "ts", "kind", "run_id", "recorder_id"}
    return [
        {key: value for key, value in record.items() if key not in header}
        for record in read_records(run_dir, ["sample"])
        if record["rollout_id"] == name and record["attempt"] == attempt
    ]


def _answer(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def _write_private(path: Path, value: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
