"""The orchestrator's face: register, seal, drop, look; where the live policy is. On its own port, behind the control
secret."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openforge.errors import OpenForgeError
from openforge.ids import RolloutId
from proxy_addons.dialects.base import WireError, openai_error
from proxy_addons.engines.trainer import LivePolicy
from proxy_addons.ledger import Ledger
from proxy_addons.rollouts import Limits, Registry, Rollout, State
from proxy_addons.seal import seal
from proxy_addons.settings import Policy
from proxy_addons.site import same_secret

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Registration(BaseModel):
    model_config = ConfigDict(extra="forbid")

    attempt: int = Field(default=0, ge=0)
    token: str = Field(min_length=16, pattern=r"^[A-Za-z0-9_-]+$")  # it travels in URLs and proxy user names
    max_calls: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    deadline_s: float = Field(default=3600.0, gt=0)
    egress_allow: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)


class Sealing(BaseModel):
    model_config = ConfigDict(extra="forbid")

    attempt: int = 0


class Control:
    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        *,
        secret: str,
        vocab_size: int | None,
        counters: Callable[[], dict[str, Any]],
        live: LivePolicy | None = None,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._secret = f"Bearer {secret}"
        self._vocab_size = vocab_size
        self._counters = counters
        self._live = live

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_put("/rollouts/{id}", self.register)
        app.router.add_get("/rollouts/{id}", self.look)
        app.router.add_delete("/rollouts/{id}", self.drop)
        app.router.add_post("/rollouts/{id}/seal", self.seal)
        app.router.add_put("/policy", self.set_policy)
        app.router.add_get("/status", self.status)
        app.router.add_get("/healthz", self.healthz)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            told = request.headers.get("authorization", "")
            if request.path != "/healthz" and not same_secret(told, self._secret):
                raise WireError(401, "unauthorized", "the control secret is needed here")
            return await handler(request)
        except WireError as error:
            return _json(error.status, orjson.loads(openai_error(error)))
        except ValidationError as problem:
            faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in problem.errors()]
            return _json(400, orjson.loads(openai_error(WireError(400, "invalid_request", "; ".join(faults)))))
        except OpenForgeError as problem:
            return _json(503, orjson.loads(openai_error(WireError(503, "recorder_broken", problem.summary))))

    async def register(self, request: web.Request) -> web.Response:
        asked = Registration.model_validate_json(await request.read())
        if self._ledger.broken:
            raise WireError(503, "recorder_broken", f"the journal is broken: {self._ledger.broken}")
        limits = Limits(asked.max_calls, asked.max_tokens, asked.deadline_s)
        rollout_id = RolloutId(request.match_info["id"])
        rollout = self._registry.register(Rollout(rollout_id, asked.attempt, asked.token, limits, asked.egress_allow))
        return _json(201, _view(rollout))

    async def look(self, request: web.Request) -> web.Response:
        return _json(200, _view(self._registry.get(request.match_info["id"])))

    async def seal(self, request: web.Request) -> web.Response:
        raw = await request.read()
        asked = Sealing.model_validate_json(raw) if raw else Sealing()
        rollout = self._registry.get(request.match_info["id"])
        if asked.attempt != rollout.attempt or rollout.state is State.DROPPED:
            raise WireError(409, "attempt", f"{rollout.id} is at attempt {rollout.attempt} and {rollout.state}")
        return _json(200, seal(rollout, self._ledger, self._vocab_size))

    async def drop(self, request: web.Request) -> web.Response:
        rollout = self._registry.get(request.match_info["id"])
        self._registry.drop(rollout)
        return _json(200, _view(rollout))

    async def set_policy(self, request: web.Request) -> web.Response:
        told = Policy.model_validate_json(await request.read())
        if self._live is None:
            raise WireError(409, "fixed_policy", "this recorder's engine is not a trainer: its policy does not move")
        self._live.move(told)
        return _json(200, _policy_view(told))

    async def status(self, request: web.Request) -> web.Response:
        rollouts = list(self._registry)
        calls = [
            {
                "call_id": call.call_id,
                "rollout_id": rollout.id,
                "dialect": call.dialect,
                "stage": call.stage,
                "stream": call.stream,
                "age_s": round(call.age_s, 3),
            }
            for rollout in rollouts
            for call in rollout.in_flight.values()
        ]
        states = Counter(str(rollout.state) for rollout in rollouts)
        ledger = self._ledger
        counts = {"aborted": ledger.aborted, "refused": ledger.refusals, "breaks": ledger.breaks, "rollouts": states}
        policy = {"policy": _policy_view(self._live.policy)} if self._live else {}
        return _json(200, {"calls": calls, **counts, **self._counters(), **policy})

    async def healthz(self, request: web.Request) -> web.Response:
        broken = self._ledger.broken
        return _json(503 if broken else 200, {"ok": not broken, "reason": broken or None})


def _view(rollout: Rollout) -> dict[str, Any]:
    totals = rollout.totals
    return {
        "rollout_id": rollout.id,
        "attempt": rollout.attempt,
        "state": str(rollout.state),
        "calls": totals.calls,
        "tokens": totals.tokens,
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "aborted": totals.aborted,
        "refused": totals.refused,
        "in_flight": len(rollout.in_flight),
    }


def _policy_view(policy: Policy) -> dict[str, Any]:
    """What may be shown: the token may not."""
    return policy.model_dump(exclude={"token"})


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")
