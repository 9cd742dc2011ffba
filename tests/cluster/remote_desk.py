"""What tests of a cluster far away share: what there is in it, and the command as a person types it."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from desk import Desk

from cluster.kube import Kube
from cluster.runtimes.pod_spec import ROLE, RUN

ROOT = Path(__file__).parents[2]


async def recorders(kube: Kube) -> list[dict[str, Any]]:
    return list((await kube.list_pods(f"{ROLE}=recorder"))["items"])


async def left(kube: Kube, run_id: str = "") -> list[str]:
    """What there is of a run, or of all of them, but for what Kubernetes is removing."""
    found = []
    spaces = f"namespaces/{kube.namespace}"
    for path in (
        *(f"/api/v1/{spaces}/{name}" for name in ("pods", "services", "secrets")),
        f"/apis/networking.k8s.io/v1/{spaces}/networkpolicies",
        f"/apis/coordination.k8s.io/v1/{spaces}/leases",
    ):
        listed = await kube.ask("GET", path)
        assert listed is not None
        for item in listed["items"]:
            marks = item["metadata"].get("labels") or {}
            if RUN in marks and run_id in ("", marks[RUN]):
                found.append(f"{path.rpartition('/')[2]}/{item['metadata']['name']}")
    return sorted(found)


async def gone(kube: Kube, run_id: str = "") -> None:
    """Kubernetes removes what belonged to a lease in its own time."""
    end_s = time.monotonic() + 60
    while there := await left(kube, run_id):
        assert time.monotonic() < end_s, there
        await asyncio.sleep(0.2)


async def start(desk: Desk, word: str = "run", *, kubeconfig: Path | None = None) -> asyncio.subprocess.Process:
    """`openforge WORD --target far`, as a person types it."""
    target = desk.target
    (desk.root / "openforge.toml").write_text(
        f'version = 1\n[target.far]\nkind = "kubernetes"\ncontext = "{target.context}"\n'
        f'namespace = "{target.namespace}"\n[target.far.policy]\nbase_url = "{desk.model.url}"\n'
    )
    argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(desk.root), "--store", str(desk.store)]
    typed = ["-o", "json", "--set", "policy.engine=openai", "--set", "run.mode=record"]
    typed += ["--tasks", str(desk.task().root), "--policy", "m"] if word == "run" else []
    place = {"KUBECONFIG": str(kubeconfig)} if kubeconfig else {}
    return await asyncio.create_subprocess_exec(
        *(*argv, "--target", "far", word, *typed),
        env={**os.environ, **place, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
