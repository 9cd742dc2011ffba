"""`openforge up` and `down`: a cluster for rollouts in pods, made here (kind, sim) or only tried (kubernetes)."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from openforge_tui.cli import output, settings

if TYPE_CHECKING:
    from openforge.config import Config


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)


def up(
    retain: Annotated[bool, typer.Option("--retain", help="Keep a node that did not come up, for its logs.")] = False,
) -> None:
    """Bring a kind cluster up, with the images that the run needs, and prove that pods are walled in.

    Idempotent: what is there stays. With --target sim it is a simulated one: a real control plane, nodes from a file. A
    cluster that was there before (kind = "kubernetes") is only tried: what you may do in it, its images, its walls.
    """
    config = _config()
    if config.target.kind == "sim":
        _up_simulated(config)
    elif config.target.kind == "kubernetes":
        from openforge_tui.cli import remote

        remote.up(config)
    else:
        _up_kind(config, retain)
    output.say(f"next: openforge run --target {config.target.name}")


def _up_simulated(config: "Config") -> None:
    from cluster.sim import control_plane
    from cluster.sim.runtime import fleet_of

    began = time.monotonic()
    fleet = fleet_of(config, settings.current().project)
    plane = control_plane.up(config.target.cluster, fleet, output.say)
    output.emit_object(
        {
            "cluster": plane.name,
            "state": plane.state,
            "kubeconfig": str(plane.kubeconfig),
            "nodes": sum(nodes.count for nodes in fleet.nodes),
            "pods": sum(nodes.count * nodes.pods for nodes in fleet.nodes),
            "seconds": round(time.monotonic() - began, 1),
        }
    )


def _up_kind(config: "Config", retain: bool) -> None:
    from cluster import images, kind
    from cluster.kube import Kube
    from cluster.task_image import run_images
    from cluster.walls import prove_walls

    target, began = config.target, time.monotonic()
    cluster = kind.up(target.cluster, output.say, node_image=target.node_image, retain=retain)
    wanted = [images.ensure_sandbox(output.say)]
    wanted += [image for _, _, image in run_images(config.run, settings.current().project, output.say)]
    loaded = kind.load(cluster, wanted, output.say)

    async def prove() -> float:
        kube = await Kube.connect(cluster.kubeconfig, cluster.context, target.namespace)
        try:
            return (await prove_walls(kube, wanted[0])).open_s
        finally:
            await kube.close()

    open_s = output.run_async(prove())
    output.emit_object(
        {
            "cluster": cluster.name,
            "state": cluster.state,
            "node_image": cluster.node_image,
            "kubeconfig": str(cluster.kubeconfig),
            "images": len(wanted),
            "loaded": len(loaded),
            "walls": f"hold (a new pod was open for {open_s:g} s; its harness starts after that)",
            "seconds": round(time.monotonic() - began, 1),
        }
    )


def down() -> None:
    """Remove the cluster with all that runs in it. Runs, images and policies stay."""
    from cluster import kind
    from cluster.sim import control_plane
    from openforge_tui.overview import not_removed

    target = _config().target
    if target.kind == "kubernetes":
        raise not_removed(target.name)
    name = target.cluster
    if control_plane.down(name) if target.kind == "sim" else kind.down(name, output.say):
        output.say(f"cluster {name} is gone")
    else:
        output.say(f"there is no cluster {name}")


def _config() -> "Config":
    """The configuration of the chosen target, or of `kind` when none was chosen."""
    config = settings.current().load().config
    if config.target.kind == "local":
        settings.change(target="kind")
        config = settings.current().load().config
    return config
