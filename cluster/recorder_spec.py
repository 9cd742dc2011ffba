"""A recorder in a cluster, as plain objects; nothing here asks a cluster.

One pod a start, two containers of one image that share a folder. `recorder` is the recorder; its control face listens
on the pod's loopback only. `shipper` outlives it and does nothing by itself: what the host executes there
(recorder_link.py) asks the control face and sends home what the recorder writes. Both end when no host has been there
for an hour. A Service is the address that stays when one pod follows the other. All of it belongs to the orchestrator's
Lease, and Kubernetes removes it with that.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from cluster.images import RECORDER_ENTRY
from cluster.runtimes.pod_spec import CONTAINER_SECURITY, OWNER, POD_SECURITY, PREFIX, ROLE, RUN, owned_by

SHARD = f"{PREFIX}/shard"
RECORDER, SHIPPER = "recorder", "shipper"
FOLDER, SETTINGS = "/data", "/run/openforge/settings.json"
PROXY_PORT, SITE_PORT, ADMIN_PORT = 8080, 8081, 8082
LINK = (*RECORDER_ENTRY, "-I", "/opt/recorder/src/cluster/recorder_link.py")
"""What executes a word of recorder_link.py in the shipper."""

_ALONE_S = 3600
_REQUESTS = {RECORDER: {"cpu": "100m", "memory": "256Mi"}, SHIPPER: {"cpu": "10m", "memory": "32Mi"}}
_LIMITS = {RECORDER: {"memory": "4Gi"}, SHIPPER: {"memory": "1Gi"}}


def labels(run_id: str, owner: str, shard: int = 0) -> dict[str, str]:
    return {ROLE: "recorder", RUN: run_id, OWNER: owner, SHARD: str(shard)}


def metadata(name: str, marks: Mapping[str, str], lease: tuple[str, str]) -> dict[str, Any]:
    """Of an object that goes when the lease (name, UID) does."""
    return {"name": name, "labels": dict(marks), "ownerReferences": owned_by(lease)}


def settings_in_pod(settings: Mapping[str, Any], secret: str) -> dict[str, Any]:
    """What the recorder is told there: the same, but for its folders and where it listens."""
    return {
        **settings,
        "run_dir": f"{FOLDER}/store/runs/{settings['run_id']}",
        "model_dir": f"{FOLDER}/model" if settings.get("model_dir") else None,
        "ca_dir": f"{FOLDER}/ca",
        "host": "0.0.0.0",
        "proxy_port": PROXY_PORT,
        "site_port": SITE_PORT,
        "admin_port": ADMIN_PORT,
        "control_secret": secret,
    }


def secret(meta: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    told = orjson.dumps(settings, default=str).decode()
    return {"apiVersion": "v1", "kind": "Secret", "metadata": dict(meta), "stringData": {"settings.json": told}}


def service(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The port of the Service is the pod's own, for a policy judges what arrives."""
    marks = meta["labels"]
    ports = [{"name": name, "port": port} for name, port in (("proxy", PROXY_PORT), ("site", SITE_PORT))]
    spec = {"selector": {name: marks[name] for name in (ROLE, OWNER, SHARD)}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": dict(meta), "spec": spec}


def peer(run_id: str, owner: str) -> dict[str, Any]:
    """The recorders of a run, as a rule about who may be reached names them."""
    return {"podSelector": {"matchLabels": {ROLE: "recorder", RUN: run_id, OWNER: owner}}}


def door(run_id: str, owner: str) -> dict[str, Any]:
    """A NetworkPolicy's spec: only the rollouts of the run come in, and only to the two ports."""
    rollouts = {"podSelector": {"matchLabels": {ROLE: "rollout", RUN: run_id, OWNER: owner}}}
    ports = [{"protocol": "TCP", "port": port} for port in (PROXY_PORT, SITE_PORT)]
    return {
        **peer(run_id, owner),
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [rollouts], "ports": ports}],
    }


def pod(
    meta: Mapping[str, Any],
    image: str,
    *,
    pull_policy: str,
    node_selector: Mapping[str, str],
    runtime_class: str,
) -> dict[str, Any]:
    """It is not started again in place: a recorder that starts knows no rollouts, so that is the orchestrator's call.
    Its Secret has the pod's name."""
    commands = {
        RECORDER: [*RECORDER_ENTRY, "-P", "-m", "proxy_addons.pod", SETTINGS, FOLDER, str(_ALONE_S)],
        SHIPPER: [
            "sh",
            "-c",
            f'while sleep 60; do [ -z "$(find {FOLDER}/alive -mmin +{_ALONE_S // 60})" ] || exit 0; done',
        ],
    }
    mounts = {"data": FOLDER, "temp": "/tmp"}

    def container(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "image": image,
            "imagePullPolicy": pull_policy,
            "command": commands[name],
            "env": [{"name": "HOME", "value": "/tmp"}, {"name": "HF_HUB_OFFLINE", "value": "1"}],
            "resources": {"requests": _REQUESTS[name], "limits": _LIMITS[name]},
            "securityContext": CONTAINER_SECURITY,
            "volumeMounts": [
                *({"name": volume, "mountPath": path} for volume, path in mounts.items()),
                {"name": "settings", "mountPath": SETTINGS.rpartition("/")[0], "readOnly": True},
            ],
        }

    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        **POD_SECURITY,
        "containers": [container(RECORDER), container(SHIPPER)],
        "volumes": [
            *({"name": volume, "emptyDir": {}} for volume in mounts),
            {"name": "settings", "secret": {"secretName": meta["name"], "defaultMode": 0o440}},
        ],
    }
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    return {"apiVersion": "v1", "kind": "Pod", "metadata": dict(meta), "spec": spec}
