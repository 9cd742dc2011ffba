"""How pods are named, built and read, without a cluster."""

from typing import Any

import pytest

from cluster.runtimes import pod_spec, pod_state
from openforge.config.models import Sandbox


def made(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "labels": pod_spec.pod_labels("r1", "o1"),
        "rollout_id": "r1.task.react.0",
        "attempt": 2,
        "deadline_s": 99.6,
        "requests": {"cpu": "0.02", "memory": "64Mi"},
        "pull_policy": "IfNotPresent",
        "node_selector": {},
    }
    return pod_spec.rollout_pod("name", "openforge/harness-react:abc", Sandbox(), **{**given, **changes})


def test_k23_k34_names_fit_and_no_two_attempts_share_one() -> None:
    ids = ["r1.A_b/C.react.0", "r1." + "x" * 300, "r1.a-b-c.react.0", "r1.ä.react.0"]
    names = [pod_spec.pod_name(one, attempt, salt) for one in ids for attempt in (0, 1) for salt in ("s", "t")]
    assert len(set(names)) == 16
    for name in names:
        assert len(name) <= 63
        assert name.isascii()
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert name[0] != "-" != name[-1]


def test_the_work_folder_is_where_the_image_has_it() -> None:
    for work in ("/app", "/srv/desk"):
        for container in made(work=work)["spec"]["containers"]:
            assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]}["work"] == work


def test_a_pod_is_bounded_and_may_nothing() -> None:
    spec = made()["spec"]
    assert spec["activeDeadlineSeconds"] == 100  # k32: the pod's own, which keeps it and its logs
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    for container in spec["containers"]:
        assert container["resources"]["limits"] == {
            "cpu": "4",
            "memory": str(4 << 30),
            "ephemeral-storage": str(4 << 30),
        }
        assert container["resources"]["requests"].keys() == container["resources"]["limits"].keys()
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["command"][-1].endswith("pod_agent.py")  # k19: never the image's own
        assert container["imagePullPolicy"] == "IfNotPresent"  # n02
        assert container["env"] == [{"name": "LD_PRELOAD", "value": ""}]  # what an image preloads is not for PID 1
    agent, keeper = ({mount["mountPath"] for mount in c["volumeMounts"]} for c in spec["containers"])
    assert keeper - agent == {"/opt/task", "/tests", "/orig", "/logs/verifier"}
    assert not [volume for volume in spec["volumes"] if "emptyDir" not in volume]


def test_k40_a_pod_says_itself_whose_it_is() -> None:
    meta = made()["metadata"]
    assert meta["annotations"] == {"openforge.dev/rollout": "r1.task.react.0"}
    assert meta["labels"] == {
        "openforge.dev/role": "rollout",
        "openforge.dev/run": "r1",
        "openforge.dev/owner": "o1",
        "openforge.dev/attempt": "2",
    }


def test_a_target_may_choose_nodes_and_a_runtime() -> None:
    spec = made(node_selector={"pool": "a"}, runtime_class="gvisor")["spec"]
    assert (spec["nodeSelector"], spec["runtimeClassName"]) == ({"pool": "a"}, "gvisor")


def test_the_wall_lets_one_address_through() -> None:
    closed, opened = pod_spec.wall("", None), pod_spec.wall("r1", ({"ipBlock": {"cidr": "10.0.0.1/32"}}, (80, 81)))
    assert (closed["ingress"], closed["egress"], closed["policyTypes"]) == ([], [], ["Ingress", "Egress"])
    [rule] = opened["egress"]
    assert rule["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    assert [port["port"] for port in rule["ports"]] == [80, 81]


def pod(phase: str = "Running", uid: str = "u", deleting: bool = False, **status: Any) -> dict[str, Any]:
    meta = {"uid": uid, **({"deletionTimestamp": "now"} if deleting else {})}
    return {"metadata": meta, "status": {"phase": phase, **status}, "spec": {"containers": [{}, {}]}}


def states(**by_container: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "image": "i:1", "state": state} for name, state in by_container.items()]


def ended(reason: str, code: int = 137) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code}}


@pytest.mark.parametrize(
    ("found", "error_class", "words"),
    [
        (None, "evicted", "deleted"),
        (pod(uid="other"), "evicted", "deleted"),  # k11: of the same name, and another
        (pod(deleting=True), "evicted", "being deleted"),
        (pod("Failed", reason="Evicted", message="node was low on memory"), "evicted", "low on memory"),
        (pod("Failed", reason="Evicted", message="emptyDir usage exceeds the limit"), "disk", "exceeds"),
        (pod("Failed", reason="DeadlineExceeded", message="too long"), "evicted", "DeadlineExceeded"),
        (pod(containerStatuses=states(agent=ended("OOMKilled"))), "memory", "memory"),
        (pod(containerStatuses=states(agent=ended("Error", 1))), "sandbox", "Error 1"),
        (pod("Failed"), "sandbox", "Failed"),
    ],
)
def test_k13_every_end_of_a_pod_has_its_class(found: dict[str, Any] | None, error_class: str, words: str) -> None:
    told = pod_state.ended(found, "u", "agent")
    assert told is not None
    assert told[0] == error_class
    assert words in told[1]


def test_a_pod_that_lives_has_not_ended_nor_has_it_by_its_other_container() -> None:
    assert pod_state.ended(pod(containerStatuses=states(keeper=ended("OOMKilled"))), "u", "agent") is None
    assert pod_state.ended(pod(containerStatuses=states(keeper=ended("OOMKilled"))), "u", "keeper") == (
        "grader",
        "killed for its memory",
    )


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"])
def test_k13_an_image_that_cannot_be_had_is_known_before_any_time_limit(reason: str) -> None:
    found = pod("Pending", containerStatuses=states(agent={"waiting": {"reason": reason, "message": "no such"}}))
    assert pod_state.trouble(found) == ("image", f"{reason}: no such")


def test_it_runs_when_both_of_its_containers_do() -> None:
    running: dict[str, Any] = {"running": {}}
    assert not pod_state.runs(pod())
    assert not pod_state.runs(pod(containerStatuses=states(agent=running)))
    assert pod_state.runs(pod(containerStatuses=states(agent=running, keeper=running)))
    waiting = states(agent={"waiting": {"reason": "ContainerCreating"}})
    assert pod_state.unscheduled(pod("Pending", containerStatuses=waiting)) == "agent: ContainerCreating"
    full = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]
    assert pod_state.unscheduled(pod("Pending", conditions=full)) == "Unschedulable: 0/1 nodes"
