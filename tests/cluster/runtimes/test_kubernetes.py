"""How the runtime ends its pods, with a cluster that does not do as it is told."""

import asyncio
from typing import Any

import pytest

from cluster.kube import KubeError
from cluster.runtimes import kubernetes
from cluster.runtimes.kubernetes import KubernetesRuntime, Place
from cluster.task_image import RolloutImage
from openforge.config.models import Config


class Stubborn:
    """Stands in for the client and the watch: deletes end as `answers` says; a deletion that works is seen."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.deletes, self.gone = list(answers), 0, asyncio.Event()

    async def delete_pod(self, name: str, uid: str = "") -> None:
        self.deletes += 1
        status = self.answers.pop(0)
        if status >= 400:
            raise KubeError(f"said {status}", status)
        self.gone.set()

    async def until(self, name: str, test: Any) -> None:
        assert test(None)
        await self.gone.wait()

    def forget(self, name: str) -> None:
        self.forgotten = name


def runtime(stub: Stubborn) -> KubernetesRuntime:
    async def nobody() -> Any: ...

    async def image(order: object) -> RolloutImage:
        return RolloutImage("")

    made = KubernetesRuntime(nobody, "r1", Config(), Place("127.0.0.1", {}), image)
    made.kube = made.watch = stub  # type: ignore[assignment]
    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(seconds: float) -> None:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)

    monkeypatch.setattr(kubernetes, "_pause", at_once)


async def test_k01_a_delete_that_failed_is_tried_until_the_pod_is_gone() -> None:
    stub = Stubborn(500, 503, 200)
    await runtime(stub)._end("p")
    assert (stub.deletes, stub.gone.is_set(), stub.forgotten) == (3, True, "p")


async def test_k17_a_delete_that_is_not_allowed_is_not_tried_for_ever() -> None:
    stub = Stubborn(403)
    await runtime(stub)._end("p")
    assert (stub.deletes, stub.gone.is_set()) == (1, False)  # its own deadline ends it


async def test_closed_before_it_was_started_it_has_nothing_to_do() -> None:
    await runtime(Stubborn()).close()
