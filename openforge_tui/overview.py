"""What there is to know before work begins: this machine, harnesses, clusters, images, policies, runs under way, disk.

Each part is a plain function that may take long, since programs are asked that may hang: whoever shows them asks each
for itself. Every row names its part, its state in a word, what was found, and the next command where there is one.
"""

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from openforge.cache import cache_dir
from openforge.config import Loaded
from openforge.config.models import size_bytes
from openforge.errors import OpenForgeError, UsageError
from openforge_tui.jobs import duration

type Row = dict[str, Any]
type Load = Callable[[str | None], Loaded]
"""The configuration of a target by name; None = the chosen one."""
COLUMNS = ("part", "name", "state", "found", "next")
_GIB = 1 << 30


class Part(NamedTuple):
    """One part. `period_s`: how long what it found is good for."""

    name: str
    period_s: float
    ask: Callable[[Load], list[Row]]


def not_removed(target: str) -> UsageError:
    """Why `down` leaves the cluster of a target of kind "kubernetes" alone."""
    return UsageError(
        f"target {target!r} is a cluster that openforge does not make, and does not remove",
        hint="what a run has in it goes when the run ends",
    )


def machine_rows(load: Load) -> list[Row]:
    """Doctor's findings, but for those of the cluster and of harnesses, which have parts of their own."""
    from openforge_tui.machine import findings, survey

    loaded = load(None)
    machine = survey(loaded.config, loaded.project_dir, pods=False)
    return [
        _row("machine", *vars(finding).values())
        for finding in findings(machine, loaded.config)
        if finding.state == "missing" or not finding.check.startswith("harness ")
    ]


def harness_rows(load: Load) -> list[Row]:
    """Every harness, as `openforge harness list` has it."""
    from openforge_tui.harnesses import known_harnesses

    loaded, rows = load(None), []
    for known in known_harnesses(loaded.project_dir):
        wanted = "; this configuration's" if known.name in loaded.config.run.harnesses else ""
        version = f"{known.manifest.version}, " if known.manifest else ""
        fix = "" if known.installed or not known.manifest else f"openforge harness install {known.name}"
        state = "ok" if known.installed else "note"
        rows.append(_row("harness", known.name, state, f"{version}{known.state}{wanted}", fix))
    return rows


def cluster_rows(load: Load) -> list[Row]:
    """The clusters that the targets name, with their nodes where one is up."""
    chosen = load(None)
    configs = [load(name).config for name in chosen.targets]
    mine = chosen.config.target
    rows, seen = _docker_rows(mine.kind == "kind"), set()
    docker_answers = rows[0]["state"] == "ok"
    for target in (config.target for config in configs):
        if target.kind == "local" or (target.kind, target.cluster, target.context) in seen:
            continue
        seen.add((target.kind, target.cluster, target.context))
        wanted = (target.kind, target.cluster, target.context) == (mine.kind, mine.cluster, mine.context)
        if target.kind == "kubernetes":
            where = target.context or "the kubeconfig's current context"
            rows.append(
                _row("cluster", target.name, "note", f"{where}: not asked", f"openforge up --target {target.name}")
            )
        elif target.kind == "sim":
            rows += _sim_rows(load(target.name), wanted)
        elif docker_answers:
            rows += _kind_rows(target.cluster, target.name, wanted)
    return rows


def image_rows(load: Load) -> list[Row]:
    """The images that this version uses, the newest first; the old ones, which `images prune` takes, as one row."""
    from cluster import docker, images
    from cluster.task_image import wanted_images

    if problem := docker.problem():
        return [_row("images", "docker", "note", f"not to be seen: {problem}")]
    loaded = load(None)
    wanted = wanted_images(loaded.config.run, loaded.project_dir)
    old: list[images.Image] = []
    rows: list[Row] = []
    for image in images.list_images():
        if images.is_old(image, wanted):
            old.append(image)
        else:
            about = f"{image.kind}, {_size(image.size_bytes)}, {images.age(image.created)} old"
            rows.append(_row("images", image.name, "ok", about))
    if old:
        size = _size(sum(image.size_bytes for image in old))
        about = f"{len(old)}, in no use by this version; up to {size}"
        rows.append(_row("images", "old images", "note", about, "openforge images prune"))
    return rows or [
        _row("images", "images", "note", "none was built yet; `up` builds what it needs", "openforge images build")
    ]


def policy_rows(load: Load) -> list[Row]:
    """The policies that are here, where they lie, and the servers that answer for one."""
    from cluster.policy_server import servers
    from openforge_tui import policies

    loaded = load(None)
    wanted = loaded.config.policy.model
    rows = []
    for name in dict.fromkeys([wanted, *policies.BUILTIN, *policies.made()]):
        folder = policies.find(name)
        what = "this configuration's; " if name == wanted else ""
        if loaded.config.policy.base_url and name == wanted:
            rows.append(_row("policy", name, "ok", f"{what}asked at {loaded.config.policy.base_url}"))
        elif folder:
            rows.append(_row("policy", name, "ok", f"{what}{folder}"))
        else:
            fix = f"openforge policy make {name}" if name in policies.BUILTIN else "openforge policy list"
            rows.append(_row("policy", name, "note", f"{what}not made yet", fix))
    for server in servers():
        place = f"port {server.port}, process {server.pid}"
        if server.alive:
            stays = "stays until it is stopped" if server.keep else "ends with its last user"
            rows.append(_row("policy", "server", "ok", f"{server.model or 'a policy'} on {place}; {stays}"))
        else:
            rows.append(_row("policy", "server", "note", f"{place} died; the next run starts another"))
    return rows


def live_rows(load: Load) -> list[Row]:
    """The runs under way and their recorders, as their orchestrators tell."""
    from openforge_tui.live_status import ask_all

    rows = []
    for told in asyncio.run(ask_all(load(None).store_root)):
        states = ", ".join(f"{count} {state}" for state, count in told["rollouts"].items()) or "no rollouts yet"
        calls = Counter(call.get("shard") or 0 for call in told["calls"])
        what = f"{states}; {calls.total()} model calls in flight; sandbox {told['isolation']}"
        rows.append(_row("live", told["run_id"], "ok", what))
        rows += [shard_row(recorder, calls[recorder["shard"]]) for recorder in told.get("recorders", [])]
    return rows or [_row("live", "runs", "ok", "none is going on")]


def shard_row(recorder: dict[str, Any], calls: int) -> Row:
    """The recorder of one shard of a run, with the model calls that it answers now."""
    name, starts = f"recorder {recorder['shard']}", recorder["starts"]
    again = f", started {starts} times" if starts > 1 else ""
    if recorder["state"] == "up":
        in_flight = "1 model call" if calls == 1 else f"{calls} model calls"
        return _row("live", name, "ok", f"up for {duration(recorder['up_s'])}{again}; {in_flight} in flight")
    following = "; the next attempt on this shard starts it again" if recorder["state"] == "down" else ""
    return _row("live", name, "note", f"{recorder['state']}{again}{following}", "openforge logs --recorder")


def disk_rows(load: Load) -> list[Row]:
    """What is free, and what the store and the cache take of it."""
    store = load(None).store_root
    rows = []
    for name, folder in (("store", store), ("cache", cache_dir())):
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        rows.append(_row("disk", name, "ok", f"{_size(size_of(folder))}, {_size(free)} free; {folder}"))
    return rows


PARTS = (
    Part("machine", 30.0, machine_rows),
    Part("harness", 30.0, harness_rows),
    Part("cluster", 10.0, cluster_rows),
    Part("images", 30.0, image_rows),
    Part("policy", 10.0, policy_rows),
    Part("live", 2.0, live_rows),
    Part("disk", 120.0, disk_rows),
)


def asked(part: Part, load: Load) -> list[Row]:
    """The rows of a part; what goes wrong in one is a row of it, and the others stand."""
    try:
        return part.ask(load)
    except OpenForgeError as error:
        return [_row(part.name, part.name, "missing", error.summary, error.hint)]


def size_of(folder: Path) -> int:
    """Bytes on disk of all files below `folder`; those that go away meanwhile count nothing."""
    total, seen = 0, set()
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                about = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if about.st_nlink > 1:  # one file under several names takes its place once
                if (about.st_dev, about.st_ino) in seen:
                    continue
                seen.add((about.st_dev, about.st_ino))
            total += about.st_blocks * 512
    return total


def _docker_rows(needed: bool) -> list[Row]:
    from cluster import docker

    if problem := docker.problem():
        why = "this target's pods need it" if needed else "only pods on this machine need it"
        return [
            _row(
                "cluster",
                "docker",
                "missing" if needed else "note",
                f"{problem} ({why})",
                "start Docker; then: openforge up",
            )
        ]
    return [_row("cluster", "docker", "ok", "it answers")]


def _kind_rows(cluster: str, target: str, wanted: bool) -> list[Row]:
    from cluster import kind

    try:
        found = kind.status(cluster)
        if found.state != "ready":
            return [_cluster_row(f"kind {cluster}", found.state, wanted, target)]
        told = json.loads(kind.kubectl(found, "get", "nodes", "--output", "json", step="asking for its nodes"))
    except OpenForgeError as error:
        return [_row("cluster", f"kind {cluster}", "missing", error.summary.splitlines()[-1], error.hint)]
    return [_cluster_row(f"kind {cluster}", "ready", wanted, target), *map(node_row, told["items"])]


def _sim_rows(loaded: Loaded, wanted: bool) -> list[Row]:
    from cluster.sim import control_plane
    from cluster.sim.runtime import fleet_of

    target = loaded.config.target
    state = control_plane.status(target.cluster).state
    row = _cluster_row(f"sim {target.cluster}", state, wanted, target.name)
    if state == "ready":
        nodes = fleet_of(loaded.config, loaded.project_dir).nodes
        count, pods = sum(one.count for one in nodes), sum(one.count * one.pods for one in nodes)
        row["found"] = f"ready; {count} simulated nodes for {pods} pods"
    return [row]


def _cluster_row(name: str, state: str, wanted: bool, target: str) -> Row:
    if state == "ready":
        return _row("cluster", name, "ok", state)
    return _row("cluster", name, "missing" if wanted else "note", state, f"openforge up --target {target}")


def node_row(node: dict[str, Any]) -> Row:
    """A node as Kubernetes describes it."""
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
    room, info = node["status"]["allocatable"], node["status"]["nodeInfo"]
    memory = _size(size_bytes(room["memory"]))
    found = f"{room['cpu']} cores, {memory} memory, {room['pods']} pods; kubelet {info['kubeletVersion']}"
    return _row(
        "cluster",
        f"node {node['metadata']['name']}",
        "ok" if ready else "missing",
        found if ready else f"not ready; {found}",
    )


def _row(part: str, name: str, state: str, found: str, next: str = "") -> Row:
    return {"part": part, "name": name, "state": state, "found": found, "next": next}


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / (1 << 20):.0f} MiB"
