"""`openforge up --target NAME` for a cluster that was there before: nothing of it is made, all of it is tried."""

import time
from typing import TYPE_CHECKING

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from openforge.config import Config


def up(config: "Config") -> None:
    """Push the run's images, ask what we may do in the cluster, prove that pods are walled in. CheckError, InfraError,
    UsageError."""
    from cluster.remote_check import check_cluster
    from cluster.remote_place import RemoteImages, check_policy
    from openforge.harness import harness_roots, load_harness
    from openforge.task import load_tasks

    target, began = config.target, time.monotonic()
    images = RemoteImages(target.registry, output.say)
    harnesses = [load_harness(name, harness_roots(settings.current().project)) for name in config.run.harnesses]
    names = output.run_async(images.all(harnesses, load_tasks(config.run.tasks)))
    if not target.registry:
        output.say(f"target {target.name} names no registry: its nodes must have {', '.join(names)}")
    checked = output.run_async(check_cluster(config, images))
    check_policy(target.name, config.policy.base_url)
    output.emit_object(
        {
            "cluster": target.context or "the kubeconfig's current context",
            "version": checked.version,
            "namespace": target.namespace,
            "registry": target.registry,
            "images": len(names),
            "walls": f"hold (a new pod was open for {checked.open_s:g} s; its harness starts after that)",
            "seconds": round(time.monotonic() - began, 1),
        }
    )
