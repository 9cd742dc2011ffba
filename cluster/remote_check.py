"""Whether rollouts can live in a cluster that was there before: that it answers, what we may do in it, its walls.

What we must be allowed to do stands in role.json, which an administrator can apply as it is.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.kube import Kube
from cluster.remote_place import RemoteImages, connecting
from cluster.walls import prove_walls
from openforge.config.models import Config
from openforge.errors import CheckError, InfraError

ROLE = Path(__file__).with_name("role.json")
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Checked:
    """A cluster that rollouts can live in. `open_s`: for how long a new pod could still connect."""

    version: str
    open_s: float


async def check_cluster(config: Config, images: RemoteImages) -> Checked:
    """InfraError when the cluster does not answer or has not the images, CheckError when rollouts cannot be in it."""
    kube, target = await connecting(config)(), config.target
    try:
        told = await kube.ask("GET", "/version")
        assert told is not None
        if denied := await _denied(kube):
            raise CheckError(
                f"in namespace {kube.namespace!r} you may not {'; '.join(denied)}",
                hint=f"have an administrator apply {ROLE} to the namespace, and bind it to you",
            )
        proof = await prove_walls(kube, await images.sandbox(), target.node_selector, target.runtime_class)
    finally:
        await kube.close()
    return Checked(told["gitVersion"], proof.open_s)


async def _denied(kube: Kube) -> list[str]:
    """What of the role we do not have, as words."""
    role = json.loads(await asyncio.to_thread(ROLE.read_bytes))
    asked = [
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    allowed = await asyncio.gather(*(_may(kube, *what) for what in asked))
    return [f"{verb} {resource}" for (verb, _, resource), may in zip(asked, allowed, strict=True) if not may]


async def _may(kube: Kube, verb: str, group: str, resource: str) -> bool:
    kind, _, part = resource.partition("/")
    what = {"namespace": kube.namespace, "verb": verb, "group": group, "resource": kind, "subresource": part}
    body: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": what},
    }
    told = await kube.ask("POST", _REVIEWS, body)
    if told is None or "status" not in told:
        raise InfraError("Kubernetes does not say what we may do in it", hint="kubectl auth can-i --list")
    return bool(told["status"].get("allowed"))
