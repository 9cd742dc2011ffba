"""A thousand rollouts, a pod each, on a simulated cluster: the orchestrator brings them through all their states.

    ./just bench fleet [--rollouts 1000] [--nodes 100]

Real: the API server, the scheduler, the watch, the recorder, the journal. Simulated: nodes and what runs in the pods.
`running` is counted from the first rollout's submission until all of them are in state `running` at once.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.figure import report
from cluster.attempt import RolloutSpec
from cluster.launch import engine_for, orchestrate
from cluster.rollout import Rollout
from cluster.sim import control_plane
from cluster.sim.fleet_file import read_fleet
from openforge.config.load import load
from openforge.harness import load_harness
from openforge.task import load_tasks

_CLUSTER, _RUN_S = "bench", 40.0


async def measure(folder: Path, rollouts: int) -> bool:
    changes = {"run.concurrency": rollouts, "target.cluster": _CLUSTER, "target.fleet": str(folder / "fleet.toml")}
    config = load(folder, "sim", changes, env={}).config
    [task], harness = load_tasks(["desk/count-lines"]), load_harness("react")
    specs = [RolloutSpec(task, harness, sample, sample) for sample in range(rollouts)]
    reached: dict[str, list[float]] = {"starting": [], "running": [], "done": []}

    def on_event(rollout: Rollout) -> None:
        if rollout.state in reached:
            reached[rollout.state].append(time.monotonic())

    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    async with engine_for(config, None, say) as engine:
        async with orchestrate(config, folder, engine, project=folder, say=say, on_event=on_event) as orchestrator:
            began = time.monotonic()
            ended = await orchestrator.run_all(specs)
            over_s = time.monotonic() - began
    states = Counter(str(rollout.state) for rollout in ended)
    print(f"{rollouts} rollouts: {dict(states)}, over after {over_s:.1f} s ({_RUN_S:g} s of it is the harness)")
    if states != {"done": rollouts}:
        return False
    running_s = max(reached["running"]) - began
    if running_s > min(reached["done"]) - began:
        print("some were done before all ran: run fewer, or raise the time that a harness takes")
        return False
    good = report(f"{rollouts} running at once after", running_s, "s", 12)
    waits = sorted(
        later - first for first, later in zip(sorted(reached["starting"]), sorted(reached["running"]), strict=True)
    )
    print(f"created to running: p50 {waits[rollouts // 2]:.2f} s, p95 {waits[rollouts * 95 // 100]:.2f} s")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openforge-bench-") as name:
        folder = Path(name)
        (folder / "fleet.toml").write_text(
            f'version = 1\n[[nodes]]\nname = "cpu"\ncount = {given.nodes}\n'
            f"[pods]\nstart_s = [0.0, 0.0]\n[rollouts]\nrun_s = [{_RUN_S}, {_RUN_S}]\n"
        )
        control_plane.up(_CLUSTER, read_fleet(folder / "fleet.toml"), lambda text: print(text, file=sys.stderr))
        try:
            return 0 if asyncio.run(measure(folder, given.rollouts)) else 5
        finally:
            control_plane.down(_CLUSTER)


if __name__ == "__main__":
    sys.exit(main())
