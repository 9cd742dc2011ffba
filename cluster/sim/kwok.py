"""What kwok is told: the nodes it plays, and the stages that a node and a pod go through. Plain data."""

from collections.abc import Mapping
from typing import Any

from cluster.sim.fleet_file import Fleet, Nodes

_GROUP = "kwok.x-k8s.io/v1alpha1"
_READY = (
    '{type: Ready, status: "True", reason: Simulated, '
    "lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}"
)
_RUNNING = f"""
phase: Running
startTime: {{{{ Now | Quote }}}}
conditions: [{_READY}]
containerStatuses:
{{{{ range .spec.containers }}}}
- name: {{{{ .name | Quote }}}}
  image: {{{{ .image | Quote }}}}
  ready: true
  started: true
  restartCount: 0
  state: {{running: {{startedAt: {{{{ Now | Quote }}}}}}}}
{{{{ end }}}}
"""


def node(name: str, group: Nodes) -> dict[str, Any]:
    """The object of one node."""
    room = {"cpu": f"{group.cpu:g}", "memory": group.memory, "pods": str(group.pods), "ephemeral-storage": "1Ti"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"type": "kwok", "kubernetes.io/hostname": name}},
        "status": {"allocatable": room, "capacity": room},
    }


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether pods can be put there: it is ready, and the controllers have taken notice."""
    conditions = {told["type"]: told["status"] for told in node["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def configuration(fleet: Fleet) -> list[dict[str, Any]]:
    """Nodes are ready at once; pods run a while after they are scheduled and go when they are deleted."""
    shortest, longest = (round(seconds * 1000) for seconds in fleet.pods.start_s)
    options = {  # without a value of its own each of the numbers is 0, and kwok ends
        "manageNodesWithLabelSelector": "type=kwok",
        "nodeLeaseDurationSeconds": 40,
        "nodeLeaseParallelism": 4,
        "nodePlayStageParallelism": 4,
        "podPlayStageParallelism": 16,
    }
    unready = {
        "key": '.status.conditions.[] | select(.type == "Ready") | .status',
        "operator": "NotIn",
        "values": ["True"],
    }
    kept = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    pending = {"key": ".status.phase", "operator": "In", "values": ["Pending"]}
    deleted = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    return [
        {"apiVersion": f"config.{_GROUP}", "kind": "KwokConfiguration", "options": options},
        _stage("node-ready", "Node", [unready], {"statusTemplate": f"conditions: [{_READY}]"}),
        _stage(
            "pod-running",
            "Pod",
            [kept, pending],
            {"statusTemplate": _RUNNING},
            delay={"durationMilliseconds": shortest, "jitterDurationMilliseconds": longest},
        ),
        _stage("pod-gone", "Pod", [deleted], {"delete": True, "finalizers": {"empty": True}}),
    ]


def _stage(name: str, kind: str, when: list[dict[str, Any]], then: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": when}, "next": then}
    return {"apiVersion": _GROUP, "kind": "Stage", "metadata": {"name": name}, "spec": spec | more}
