"""What a rollout's pod costs on this machine's kind cluster, and how many of them it holds at once.

    ./just bench pods [--cluster NAME] [--most N]

Each pod is a real rollout's: two containers of the harness's image, start files made, walls proven. `ready` is all of
that. The last figure grows the number held at once until something gives way, and says what that was.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.figure import report
from cluster import docker, kind
from cluster.install import install
from cluster.kind_place import kind_runtime
from cluster.runtimes import pod_state
from cluster.runtimes.base import Order
from cluster.runtimes.kubernetes import KubernetesRuntime
from cluster.runtimes.pod_spec import AGENT
from openforge.config.models import Config, Target
from openforge.errors import OpenForgeError
from openforge.harness import load_harness
from openforge.ids import new_run_id
from openforge.task import load_tasks

_EXECS, _BATCH_S = 20, 90.0


class Bench:
    def __init__(self, runtime: KubernetesRuntime, node: str, logs: Path) -> None:
        self.runtime, self.node, self.logs, self.number = runtime, node, logs, 0
        self.harness = load_harness("react")
        self.installed = install(self.harness)
        [self.task] = load_tasks(["desk/count-lines"])

    def order(self) -> Order:
        self.number += 1
        return Order(
            rollout_id=f"bench.{self.number}",
            attempt=0,
            task=self.task,
            seed=self.number,
            harness=self.harness,
            installed=self.installed,
            settings=Config().sandbox,
            wall_s=3600.0,
            log=self.logs / f"{self.number}.log",
        )

    async def hold(self, stack: AsyncExitStack, count: int) -> list[float]:
        """Make `count` sandboxes ready at once and keep them; seconds that each took."""

        async def one() -> float:
            began = time.monotonic()
            await stack.enter_async_context(self.runtime.sandbox(self.order()))
            return time.monotonic() - began

        return list(await asyncio.gather(*(one() for _ in range(count))))

    def waiting(self) -> str:
        """Why a pod does not run, in the cluster's words."""
        pods = [pod for pod in self.runtime.watch.pods.values() if not pod_state.runs(pod)]
        return pod_state.unscheduled(pods[0]) if pods else "all of them run"

    def memory_mb(self) -> float:
        """What the node's processes hold, without file caches that can go."""
        place = "/sys/fs/cgroup/memory/memory.stat"
        argv = ("exec", self.node, "sh", "-c", f"cat {place} 2>/dev/null || cat /sys/fs/cgroup/memory.stat")
        lines = dict(line.split() for line in docker.docker(*argv, step="asking for memory").splitlines())
        return int(lines.get("total_rss") or lines["anon"]) / 1e6


async def measure(bench: Bench, most: int) -> bool:
    good = True
    async with AsyncExitStack() as stack:
        [alone] = await bench.hold(stack, 1)
        print(f"one pod alone, ready in: {alone:.2f} s", flush=True)
        sandbox = await stack.enter_async_context(bench.runtime.sandbox(bench.order()))
        took = []
        for _ in range(_EXECS):
            began = time.monotonic()
            await sandbox._word(AGENT, "ready", '{"forbidden": [], "needed": [], "patience_s": 0}')
            took.append(time.monotonic() - began)
        good &= report("one exec, median", statistics.median(took), "s", 0.28)
    async with AsyncExitStack() as stack:
        before, began = bench.memory_mb(), time.monotonic()
        took = sorted(await bench.hold(stack, 20))
        total_s = time.monotonic() - began
        print(
            f"20 at once: {20 / total_s:.2f} pods a second, ready p50 {took[10]:.1f} s, p95 {took[18]:.1f} s",
            flush=True,
        )
        print(f"memory of a pod: {(bench.memory_mb() - before) / 20:.0f} MB", flush=True)
    held, why = 0, f"{most} were asked for at most"
    async with AsyncExitStack() as stack:
        while held < most:
            step = min(20, most - held)
            try:
                async with asyncio.timeout(_BATCH_S):
                    await bench.hold(stack, step)
            except OpenForgeError as error:
                why = str(error)[:200]
                break
            except TimeoutError:
                why = f"{step} more were not ready in {_BATCH_S:g} s; {bench.waiting()}"
                break
            held += step
    print(f"held at once: {held} rollouts ({why})", flush=True)
    return good


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="openforge")
    parser.add_argument("--most", type=int, default=120)
    given = parser.parse_args()
    config = Config(target=Target(name="kind", kind="kind", cluster=given.cluster, namespace="bench"))
    runtime, _ = kind_runtime(config, new_run_id(), lambda text: print(text, file=sys.stderr))
    await runtime.start()
    try:
        with tempfile.TemporaryDirectory() as logs:
            cluster = kind.status(given.cluster)
            return 0 if await measure(Bench(runtime, f"{cluster.name}-control-plane", Path(logs)), given.most) else 5
    finally:
        await runtime.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
