"""A recorder as the orchestrator knows it, wherever it runs: started, asked over its control face, gone one day.

Nothing of the recorder's code is imported. The control secret is made here and never enters a sandbox.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from openforge.errors import InfraError

READY_S = 90.0
STOP_S = 15.0
CALL_S = 30.0


class RecorderError(InfraError):
    """The recorder did not start, is gone, or refused what the orchestrator asked."""


@dataclass(frozen=True)
class Ready:
    """What a recorder said when it was ready. `ca_path` is on this machine; `pid` is where it runs."""

    recorder_id: str
    proxy_port: int
    site_port: int
    admin_port: int
    ca_path: Path
    pid: int


@dataclass(frozen=True)
class SealSummary:
    """What a rollout's calls came to. `limited`: those of the aborted that were over a limit once they were read.
    `invalid_calls`: tool calls of its answers that no harness could have run."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    samples: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    breaks: dict[str, int]
    aborted: int
    limited: int
    refused_calls: int
    invalid_calls: int = 0


class Recorder(ABC):
    """One start of a recorder. `died` is set when it has ended, whatever the reason."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.died = asyncio.Event()
        self.ready: Ready | None = None

    @abstractmethod
    async def start(self) -> Ready:
        """Start and wait until it is ready. RecorderError with the end of its log when it does not come."""

    @abstractmethod
    async def stop(self) -> None:
        """End it: politely first, so that it seals its journal. Idempotent."""

    @abstractmethod
    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        """What the control face answers. RecorderError when it does not."""

    async def set_policy(self, addresses: Sequence[str], token: str, weight_version: str) -> None:
        """Tell the engine `trainer` where the live policy is from now on (no address: away, calls wait). Idempotent.
        RecorderError when the recorder is gone or has another engine."""
        body = {"addresses": list(addresses), "token": token, "weight_version": weight_version}
        await self._call("PUT", "/policy", body)

    async def register(self, rollout_id: str, body: Mapping[str, Any]) -> None:
        await self._call("PUT", f"/rollouts/{rollout_id}", body)

    async def seal(self, rollout_id: str, attempt: int) -> SealSummary:
        """Close the rollout: calls under way are cancelled, later ones refused. Asking again gives the same answer.
        Its records are in the run's journal on this machine by then."""
        told = await self._call("POST", f"/rollouts/{rollout_id}/seal", {"attempt": attempt})
        return SealSummary(**{name: told[name] for name in SealSummary.__dataclass_fields__})

    async def drop(self, rollout_id: str) -> None:
        await self._call("DELETE", f"/rollouts/{rollout_id}")

    async def rollout(self, rollout_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/rollouts/{rollout_id}")

    async def status(self) -> dict[str, Any]:
        return await self._call("GET", "/status")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self.ready is None or self.died.is_set():
            raise RecorderError("the recorder is not running", hint=f"see {self._log}")
        status, data = await self._ask(method, path, body)
        if status >= 300:
            text = data[:300].decode(errors="replace")
            raise RecorderError(f"the recorder refused {method} {path}: {status} {text}")
        told = orjson.loads(data) if data else {}
        return told if isinstance(told, dict) else {}
