"""Whether a cluster enforces NetworkPolicy: tried with two pods, of which one is walled in.

The unwalled one must reach the API server, or the other's failure to would prove nothing; the walled one must not. In
each rollout's own pod the same is tried again before its harness starts, see cluster/runtimes/kubernetes.py.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.kube import Kube, KubeError, PodWatch
from cluster.runtimes import pod_spec, pod_state
from cluster.runtimes.pod_spec import AGENT, PROGRAM
from openforge.config.models import Sandbox
from openforge.errors import CheckError, InfraError

_START_S, _LIFE_S, _PATIENCE_S = 120.0, 300.0, 30.0


@dataclass(frozen=True)
class Proof:
    """`open_s`: for how long the walled pod could still connect after it had begun to run."""

    target: str
    open_s: float


async def prove_walls(
    kube: Kube, image: str, node_selector: Mapping[str, str] | None = None, runtime_class: str = ""
) -> Proof:
    """CheckError where walls do not hold; InfraError where that cannot be told."""
    await kube.ensure_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
    await kube.apply_policy("rollouts", pod_spec.wall("", None), {})
    host, port = await kube.service_address()
    probe = f"walls-{secrets.token_hex(4)}"
    watch = PodWatch(kube, f"{pod_spec.RUN}={probe}")
    await watch.start()
    pods = {f"{probe}-{role}": role for role in ("rollout", "open")}
    try:
        for name, role in pods.items():
            labels = {pod_spec.RUN: probe, pod_spec.ROLE: role}
            await kube.create_pod(_pod(name, image, labels, node_selector or {}, runtime_class))
        asking = (_ask(kube, watch, name, role, (host, port)) for name, role in pods.items())
        walled, unwalled = await asyncio.gather(*asking)
    finally:
        for name in pods:
            await kube.delete_pod(name)
        await watch.close()
    if unwalled["closed"]:
        raise InfraError(
            f"no pod reaches the API server at {host}:{port}, walled or not: nothing is proven by that",
            hint="is the cluster's network up? openforge down, then openforge up, makes it anew",
        )
    if walled["open"]:
        raise CheckError(
            f"a pod with a NetworkPolicy against it still reaches {host}:{port} after {walled['waited_s']:g} s: this "
            "cluster does not enforce NetworkPolicy, and rollouts would not be walled in",
            hint="use a CNI that does (Calico, Cilium, kindnet of kind 0.24 and later)",
        )
    return Proof(f"{host}:{port}", walled["waited_s"] if walled["tries"] > 1 else 0.0)


def _pod(
    name: str, image: str, labels: dict[str, str], node_selector: Mapping[str, str], runtime_class: str
) -> dict[str, Any]:
    return pod_spec.rollout_pod(
        name,
        image,
        Sandbox(),
        labels=labels,
        rollout_id=name,
        attempt=0,
        deadline_s=_LIFE_S,
        requests={"cpu": "10m", "memory": "32Mi"},
        pull_policy="IfNotPresent",
        node_selector=node_selector,
        runtime_class=runtime_class,
    )


async def _ask(kube: Kube, watch: PodWatch, name: str, role: str, place: tuple[str, int]) -> dict[str, Any]:
    """Try to connect from inside, until it fails or, unwalled, until it succeeds, or patience ends."""
    try:
        async with asyncio.timeout(_START_S):
            pod = await watch.until(
                name, lambda pod: pod is not None and (pod_state.runs(pod) or bool(pod_state.trouble(pod)))
            )
    except TimeoutError:
        found = watch.pods.get(name)
        why = pod_state.unscheduled(found) if found else "the API server tells of no such pod"
        raise InfraError(f"pod {name} did not start in {_START_S:g} s: {why}") from None
    if pod is not None and not pod_state.runs(pod) and (trouble := pod_state.trouble(pod)):
        raise InfraError(f"pod {name} did not start: {trouble[1]}")
    walled = role == "rollout"
    asked = {"forbidden": [place] if walled else [], "needed": [] if walled else [place], "patience_s": _PATIENCE_S}
    said: list[bytes] = []
    argv = [*PROGRAM, "ready", json.dumps(asked)]
    told = await kube.execute(name, AGENT, argv, on_output=said.append)
    if told.code != 0:
        raise KubeError(f"pod {name} could not try: {told.error.decode(errors='replace')[-300:]}")
    answer: dict[str, Any] = json.loads(b"".join(said))
    return answer
