"""The pod of one rollout, as a plain object; nothing here asks a cluster.

Two containers of one image. `agent` is where the harness runs; `keeper` makes the start files and runs the verifier,
and has what the agent must not see. They share the work and the home folder, and a folder for the socket by which the
verifier has the agent's code run where the agent ran. In both, PID 1 is pod_agent.py, and the image's own command never
runs, so nothing of a task's or a model's making runs before the walls are known to stand.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from cluster.images import ENTRY
from openforge.config.models import Sandbox, size_bytes

PREFIX = "openforge.dev"
ROLE = f"{PREFIX}/role"
RUN = f"{PREFIX}/run"
OWNER = f"{PREFIX}/owner"
ROLLOUT = f"{PREFIX}/rollout"
ATTEMPT = f"{PREFIX}/attempt"
AGENT, KEEPER = "agent", "keeper"
USER = 1000
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
"""What every pod of ours may not do, rollouts and recorders alike."""
_REQUEST_DISK = "8Mi"
_AGENT_FOLDER = "/opt/openforge/agent/cluster/runtimes"
PROGRAM = (*ENTRY, "-I", f"{_AGENT_FOLDER}/pod_words.py")
"""What executes a word in a container."""


def pod_name(rollout_id: str, attempt: int, salt: str) -> str:
    """A name that no other attempt has, nor this one in another life of the orchestrator; at most 63 characters."""
    words = re.sub(r"[^a-z0-9]+", "-", rollout_id.lower()).strip("-")[:36].strip("-")
    digest = hashlib.blake2b(f"{rollout_id}\0{attempt}\0{salt}".encode(), digest_size=6).hexdigest()
    return f"{words}-{attempt}-{digest}"


def pod_labels(run_id: str, owner: str) -> dict[str, str]:
    """What every pod of a run carries: the network policies and the reaper go by it."""
    return {ROLE: "rollout", RUN: run_id, OWNER: owner}


def owned_by(lease: tuple[str, str]) -> list[dict[str, str]]:
    """What an object says that Kubernetes removes together with a lease, given by name and UID."""
    return [{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": lease[0], "uid": lease[1]}]


def rollout_pod(
    name: str,
    image: str,
    sandbox: Sandbox,
    *,
    labels: Mapping[str, str],
    rollout_id: str,
    attempt: int,
    deadline_s: float,
    requests: Mapping[str, str],
    pull_policy: str,
    node_selector: Mapping[str, str],
    runtime_class: str = "",
    work: str = "/app",
    spread_by: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The whole object. `deadline_s` is when Kubernetes ends it though nobody asks for that any more; `work` is where
    the image has its work folder. `spread_by`: no node has two more pods of these labels than another, so that N times
    as many as there are nodes are N on each."""
    disk = size_bytes(sandbox.disk)
    limits = {"cpu": f"{sandbox.cpu:g}", "memory": str(size_bytes(sandbox.memory)), "ephemeral-storage": str(2 * disk)}
    folders = {"work": work, "home": "/home/agent", "untrusted": "/run/untrusted"}
    own = {"temp": "/tmp", "run": "/run/openforge"}
    kept = {"task": "/opt/task", "tests": "/tests", "orig": "/orig", "verifier": "/logs/verifier"}

    def container(role: str, mounts: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "name": role,
            "image": image,
            "imagePullPolicy": pull_policy,
            "command": [*ENTRY, "-I", f"{_AGENT_FOLDER}/pod_agent.py"],
            "workingDir": "/",
            "env": [{"name": "LD_PRELOAD", "value": ""}],  # an image's own is for its commands, not for our agent
            # a limit without a request is a request, and few pods would fit
            "resources": {"requests": {**requests, "ephemeral-storage": _REQUEST_DISK}, "limits": limits},
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": mounts,
        }

    def mounts(places: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"name": volume, "mountPath": path} for volume, path in places.items()]

    agents = folders | {f"{AGENT}-{volume}": path for volume, path in own.items()}
    keepers = folders | {f"{KEEPER}-{volume}": path for volume, path in own.items()} | kept
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, round(deadline_s)),
        "terminationGracePeriodSeconds": 0,
        **POD_SECURITY,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},  # names are the recorder's business
        "containers": [container(AGENT, mounts(agents)), container(KEEPER, mounts(keepers))],
        "volumes": [{"name": volume, "emptyDir": {"sizeLimit": str(2 * disk)}} for volume in agents | keepers],
    }
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    if spread_by:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "nodeTaintsPolicy": "Honor",
                "labelSelector": {"matchLabels": dict(spread_by)},
            }
        ]
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**labels, ATTEMPT: str(attempt)},
            "annotations": {ROLLOUT: rollout_id},
        },
        "spec": spec,
    }


def wall(run_id: str, recorder: tuple[Mapping[str, Any], tuple[int, ...]] | None) -> dict[str, Any]:
    """A NetworkPolicy's spec for the pods of a run: nothing comes in, and nothing goes out but to the recorder, which
    is a peer as such rules name one, and its ports."""
    egress = []
    if recorder is not None:
        peer, ports = recorder
        egress.append({"to": [dict(peer)], "ports": [{"protocol": "TCP", "port": p} for p in ports]})
    return {
        "podSelector": {"matchLabels": {ROLE: "rollout", **({RUN: run_id} if run_id else {})}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": egress,
    }
