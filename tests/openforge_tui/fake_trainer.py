"""Stands in for `python -m trainer.main`: asks the orchestrator as a trainer does, tells its events, dies when told to.

`lives.json` in its working folder says what each start does, a list of words a start; the last one's are repeated:
`ready`, `step` (a rollout, and the update that learned from it), `save`, `half` (a checkpoint cut off), `exit N`,
`hang`, `daemon` (a process that outlives it, as Ray's do), `noise`, `done`. It is the trainer, not what is tested.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from trainer.orchestrator import Orchestrator

HERE = Path.cwd()
STARTS = "starts.jsonl"
EVENT = "openforge: "


def tell(event: dict[str, Any]) -> None:
    print(f"\n{EVENT}{orjson.dumps(event).decode()}", flush=True)


def start_daemon() -> None:
    folder = Path(os.environ["RAY_TMPDIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "worker.log").open("w") as log:
        subprocess.Popen(["sleep", "300"], stdout=log, stderr=log, start_new_session=True)


class Life:
    def __init__(self, orchestrator: Orchestrator, resume: str, incarnation: int) -> None:
        self.orchestrator, self.incarnation = orchestrator, incarnation
        self.step = int(resume.rpartition("_")[2] or 0)
        self.stop_asked = False

    async def do(self, word: str, *given: str) -> None:
        match word:
            case "ready":
                tell({"event": "ready", "step": self.step, "steps": 9})
            case "step":
                await self._step()
            case "save":
                self._save()
            case "half":
                (HERE / "global_step_99" / "actor").mkdir(parents=True)
            case "exit":
                print("the last words of the trainer", flush=True)
                sys.exit(int(given[0]))
            case "hang":
                await asyncio.Event().wait()
            case "daemon":
                start_daemon()
            case "noise":
                print("x" * (17 << 20), f'\n{EVENT}{{"event": "st', flush=True)
            case "done":
                tell({"event": "done", "step": self.step})
                sys.exit(0)

    async def _step(self) -> None:
        number = self.step + 1
        key = f"{self.incarnation}.{number}"
        asked = {"task": "desk/count-lines", "harness": "react", "purpose": "train", "step": number, "key": key}
        view = await self.orchestrator.rollout(asked)
        if view["reward"] is None:
            await asyncio.Event().wait()
        self.step = number
        learned = {"step": number, "weight_version": str(number), "rollouts": [view["rollout_id"]], "samples": 1}
        await self.orchestrator.ask("POST", "/steps", learned)
        tell({"event": "step", "step": number, "metrics": {"train.reward": view["reward"]}})
        if self.stop_asked:
            self._save()
            tell({"event": "stopping", "step": number})
            await self.do("done")

    def _save(self) -> None:
        folder = HERE / f"global_step_{self.step}"
        folder.mkdir()
        (folder / "openforge.json").write_text("{}")


async def main() -> None:
    arguments = dict(text.partition("=")[::2] for text in sys.argv[1:])
    resume = arguments["trainer.resume_from_path"].strip("'").replace("null", "")
    starts = HERE / STARTS
    before = starts.read_bytes().count(b"\n") if starts.exists() else 0
    with starts.open("ab") as file:
        file.write(orjson.dumps({"pid": os.getpid(), "resume": Path(resume).name}) + b"\n")
    lives: list[list[str]] = orjson.loads((HERE / "lives.json").read_bytes())
    words = lives[min(before, len(lives) - 1)]
    orchestrator = Orchestrator.from_environment()
    step = int(resume.rpartition("_")[2] or 0)
    told: dict[str, Any] = await orchestrator.ask("POST", "/trainer", {"from_step": step, "pid": os.getpid()})
    policy = HERE / "policy.json"
    if policy.exists():
        await orchestrator.ask("PUT", "/policies/default", orjson.loads(policy.read_bytes()))
    life = Life(orchestrator, resume, told["incarnation"])
    signal.signal(signal.SIGTERM, lambda *_: setattr(life, "stop_asked", True))
    for word in words:
        await life.do(*word.split())
    await orchestrator.close()


if __name__ == "__main__":
    asyncio.run(main())
