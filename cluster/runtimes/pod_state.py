"""What Kubernetes says of a pod, as this project's own words: does it run, will it never, how did it end."""

import re

from cluster.kube import Pod
from cluster.runtimes.pod_spec import AGENT, KEEPER
from cluster.states import ErrorClass

_UNSTARTABLE = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
_OVER_DISK = re.compile(r"ephemeral|emptyDir|exceeds", re.IGNORECASE)


def runs(pod: Pod) -> bool:
    states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
    return len(states) == len(pod["spec"]["containers"]) and all("running" in state for state in states)


def trouble(pod: Pod) -> tuple[ErrorClass, str] | None:
    """Why a pod will not start, as far as Kubernetes says."""
    for status in pod["status"].get("containerStatuses", ()):
        waiting = status["state"].get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _UNSTARTABLE:
            return ErrorClass.IMAGE, f"{reason}: {message or status['image']}"
        if reason in _BROKEN:
            return ErrorClass.SANDBOX, f"{reason}: {message}"
    return ended(pod, pod["metadata"]["uid"], AGENT) or ended(pod, pod["metadata"]["uid"], KEEPER)


def ended(pod: Pod | None, uid: str, container: str) -> tuple[ErrorClass, str] | None:
    """How a pod, or a container of it, came to its end; None while it lives."""
    if pod is None or pod["metadata"]["uid"] != uid:
        return ErrorClass.EVICTED, "it was deleted"
    if pod["metadata"].get("deletionTimestamp"):
        return ErrorClass.EVICTED, "it is being deleted"
    status = pod["status"]
    if status.get("phase") in ("Failed", "Succeeded"):
        reason, message = status.get("reason", ""), status.get("message", "")
        if reason == "Evicted" and _OVER_DISK.search(message):
            return ErrorClass.DISK, f"evicted: {message}"
        if reason:
            return ErrorClass.EVICTED, f"{reason}: {message}"
    for told in status.get("containerStatuses", ()):
        terminated = told["state"].get("terminated")
        if told["name"] == container and terminated:
            reason = terminated.get("reason", "")
            if reason == "OOMKilled":
                return (ErrorClass.MEMORY if container == AGENT else ErrorClass.GRADER), "killed for its memory"
            return ErrorClass.SANDBOX, f"{container} ended: {reason} {terminated.get('exitCode')}"
    if status.get("phase") in ("Failed", "Succeeded"):
        return ErrorClass.SANDBOX, f"it is {status['phase']}"
    return None


def unscheduled(pod: Pod) -> str:
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    waiting = [
        f"{status['name']}: {status['state'].get('waiting', {}).get('reason')}"
        for status in pod["status"].get("containerStatuses", ())
    ]
    return ", ".join(waiting) or str(pod["status"].get("phase"))
