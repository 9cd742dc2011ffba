"""Leases: by them an orchestrator says that it lives, and what it made belongs to them and goes with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cluster.kube import Kube


@dataclass(frozen=True)
class Lease:
    """Whether its holder lives, and the version at which that was so."""

    name: str
    labels: Mapping[str, str]
    live: bool
    version: str


async def hold(kube: Kube, name: str, labels: Mapping[str, str], seconds: int) -> str:
    """Say that whoever made pods with this owner's label lives, for `seconds` from now; the lease's UID."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = {"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": now}
    body = {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
    told = await kube.ask("PATCH", f"{_path(kube)}/{name}", body, unless=(404,))  # to replace one takes its version
    told = told or await kube.ask("POST", _path(kube), body)
    assert told is not None
    uid: str = told["metadata"]["uid"]
    return uid


async def drop(kube: Kube, name: str, version: str = "") -> None:
    """`version`: only if it is still that one, and has not been renewed."""
    body = {"preconditions": {"resourceVersion": version}} if version else None
    await kube.ask("DELETE", f"{_path(kube)}/{name}", body, unless=(404, 409))


async def listed(kube: Kube) -> list[Lease]:
    told = await kube.ask("GET", _path(kube))
    assert told is not None
    return [_lease(lease) for lease in told["items"]]


def _lease(lease: Mapping[str, Any]) -> Lease:
    meta, spec = lease["metadata"], lease["spec"]
    renewed = spec.get("renewTime") or meta["creationTimestamp"]
    age_s = (datetime.now(UTC) - datetime.fromisoformat(renewed)).total_seconds()
    live = age_s < (spec.get("leaseDurationSeconds") or 0)
    return Lease(meta["name"], meta.get("labels") or {}, live, meta["resourceVersion"])


def _path(kube: Kube) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases"
