"""A made-up run of 64 rollouts that goes on until it is ended: what the app's benchmark watches.

`python -m benchmarks.app_writer STORE`. A name written to STORE/../say becomes a rollout at once.
"""

import sys
import time
from pathlib import Path

from benchmarks.big_store import SyntheticRun

ROLLOUTS = 64
CALLS_PER_S = 50


def main() -> None:
    store = Path(sys.argv[1])
    run = SyntheticRun(store)
    say = store.parent / "say"
    tips: dict[int, tuple[str, str | None, int]] = {}
    print("ready", flush=True)
    began, calls = time.monotonic(), 0
    while True:
        number = calls % ROLLOUTS
        rollout, tip, turn = tips.get(number, ("", None, 0))
        if not rollout:
            rollout = f"{run.run_id}.task-{calls % 12}.react.{calls}"
            run.state(rollout, "queued")
            run.state(rollout, "running")
        tip = run.call(rollout, tip, added=300, sampled=60, position=2 * turn)
        if turn == 9:
            run.orchestrator.append("grade", rollout_id=rollout, attempt=0, reward=1.0)
            run.state(rollout, "done")
            tips.pop(number, None)
        else:
            tips[number] = (rollout, tip, turn + 1)
        calls += 1
        if say.exists():
            run.state(f"{run.run_id}.{say.read_text() or 'x'}.react.0", "running")
            say.unlink()
        time.sleep(max(0.0, began + calls / CALLS_PER_S - time.monotonic()))


if __name__ == "__main__":
    main()
