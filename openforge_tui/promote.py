"""Targets beside one another, and what is missing to apply this configuration at one. Reads, changes nothing."""

import os
from collections.abc import Callable
from typing import Any

from openforge.config import Loaded
from openforge.errors import ConfigError, OpenForgeError
from openforge_tui.machine import Finding

type Load = Callable[[str | None], Loaded]
COLUMNS = ("target", "kind", "context", "namespace", "registry", "queue", "gpu")
TODAY = (
    "openforge up --target NAME prepares or tries a cluster, openforge run --target NAME runs rollouts in it. "
    "Applying a trainer to a remote cluster is not part of this version."
)


def target_rows(load: Load) -> list[dict[str, Any]]:
    """Every target of the configuration; one that cannot be loaded says why in its `problem`."""
    rows = []
    for name in load(None).targets:
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {"target": name, "gpu": None, "problem": ""}
        try:
            target = load(name).config.target
        except OpenForgeError as error:
            rows.append(row | {"kind": "wrong", "problem": error.summary})
            continue
        pods = target.kind != "local"
        rows.append(
            row
            | {
                "kind": target.kind,
                "context": _context(target.kind, target.cluster, target.context),
                "namespace": target.namespace if pods else "",
                "registry": target.registry,
                "queue": target.queue,
                "gpu": target.gpu,
            }
        )
    return rows


def lacking(loaded: Loaded) -> list[Finding]:
    """What stands in the way of a run there, as far as it can be known without asking a cluster elsewhere."""
    from cluster.launch import make_specs
    from openforge_tui import policies

    config, found = loaded.config, []
    try:
        once = config.model_copy(update={"run": config.run.model_copy(update={"samples": 1})})
        make_specs(once, loaded.project_dir)
    except OpenForgeError as error:
        found.append(Finding("run", "missing", error.summary, error.hint))
    if config.target.kind == "kubernetes":
        return [*found, *_elsewhere(config.target.name, config.target.context, config.target.registry)]
    policy = config.policy
    if policy.engine == "vllm" and not policy.base_url and policies.find(policy.model) is None:
        found.append(
            Finding("policy", "missing", f"{policy.model} is not made", f"openforge policy make {policy.model}")
        )
    return [*found, *_clusters(loaded)]


def _clusters(loaded: Loaded) -> list[Finding]:
    """Docker and the cluster, where this machine makes it."""
    from openforge_tui.machine import cluster_findings

    return [one for one in cluster_findings(loaded.config) if one.state == "missing"]


def _elsewhere(name: str, context: str, registry: str) -> list[Finding]:
    found: list[Finding] = []
    known, where = contexts()
    if context not in known:
        what = f"no context {context!r} in {where}" if context else f"{where} has no current context"
        found.append(Finding("context", "missing", what, "kubectl config get-contexts"))
    if not registry:
        what = "the registry is empty: the cluster's nodes must have the images already"
        found.append(Finding("registry", "note", what, f'[target.{name}] registry = "HOST/PATH"'))
    return found


def contexts() -> tuple[set[str], str]:
    """The contexts of the kubeconfig in force (with "" where there is a current one), and where it lies.
    ConfigError."""
    import yaml  # type: ignore[import-untyped]
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger

    place = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        config = KubeConfigMerger(place).config  # type: ignore[no-untyped-call]
        told = config.value if config is not None else {}
        names = {one["name"] for one in told.get("contexts") or ()}
    except (ConfigException, OSError):
        return set(), place
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise ConfigError(f"{place} is no kubeconfig: {error}", hint="kubectl config view") from None
    return names | ({""} if told.get("current-context") else set()), place


def _context(kind: str, cluster: str, context: str) -> str:
    if kind == "kubernetes":
        return context or "(current)"
    return {"kind": f"kind-{cluster}", "sim": cluster}.get(kind, "")
