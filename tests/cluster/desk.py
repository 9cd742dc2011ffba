"""Puts a run together for a test: tasks and harnesses from text, the real recorder, the scripted model server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from model_server import ModelServer

from cluster.attempt import RolloutSpec
from cluster.launch import Engine, orchestrate
from cluster.orchestrator import Orchestrator
from openforge.config.models import Config, Recorder, Run, Sandbox, Target
from openforge.harness import HarnessManifest, load_harness
from openforge.journal.reader import read_records
from openforge.task import Task, read_task

ENV = {
    "URL": "{base_url}",
    "REACT_BASE_URL": "{base_url}",
    "REACT_API_KEY": "{api_key}",
    "REACT_MODEL": "m",
}
CHECK = '[ "$(cat answer.txt)" = 42 ] && r=1 || r=0; echo $r > "$REWARD_FILE"\n'


class Desk:
    """`store` is the run's store; the last run's folder is `run_dir`."""

    def __init__(self, root: Path, model: ModelServer, target: Target | None = None) -> None:
        self.target = target or Target()
        self.root, self.model, self.store = root, model, root / "store"
        self.died = asyncio.Event()

    def task(
        self, test: str = CHECK, setup: str = "echo seed $OPENFORGE_SEED > start.txt\n", name: str = "toy"
    ) -> Task:
        folder = self.root / "tasks" / "set" / name
        for part in ("tests", "environment", "solution"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        toml = '[openforge]\nsetup = "environment/setup.sh"\n[verifier]\ntimeout_sec = 60\n'
        (folder / "task.toml").write_text(toml)
        (folder / "instruction.md").write_text("Write 42 to answer.txt.")
        (folder / "tests" / "test.sh").write_text(test)
        (folder / "environment" / "setup.sh").write_text(setup)
        (folder / "solution" / "solve.sh").write_text("echo 42 > answer.txt\n")
        return read_task(folder)

    def harness(self, script: str, name: str = "odd") -> HarnessManifest:
        """A harness that is a bash script; REACT_* variables are set as for react."""
        folder = self.root / "harnesses" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.sh").write_text(script)
        (folder / "harness.toml").write_text(
            f'name = "{name}"\nversion = "1"\ndialects = ["chat"]\n[run]\nargv = ["bash", "{{harness_dir}}/run.sh"]\n'
            "[run.env]\n" + "".join(f'{key} = "{value}"\n' for key, value in ENV.items())
        )
        return load_harness(name, [folder.parent])

    def config(self, **run: Any) -> Config:
        sandbox = Sandbox(**run.pop("sandbox", {}))
        recorder = Recorder(shards=run.pop("shards", 1))
        policy = {"engine": "openai", "model": "m", "base_url": self.model.url, **run.pop("policy", {})}
        return Config(
            run=Run(**{"mode": "record", "retries": 0, "time_limit_s": 20.0, **run}),
            sandbox=sandbox,
            recorder=recorder,
            policy=policy,
            target=self.target,
        )

    @asynccontextmanager
    async def orchestrator(self, **options: Any) -> AsyncIterator[Orchestrator]:
        """`on_event`, `run_id` and `project` are of `orchestrate`, the rest of the configuration's [run]."""
        told = {name: options.pop(name) for name in ("on_event", "run_id", "project") if name in options}
        engine = Engine(self.model.url, "m", self.died)
        async with orchestrate(self.config(**options), self.store, engine, **told) as orchestrator:
            self.run_dir = orchestrator.run_dir
            yield orchestrator

    def spec(self, task: Task | None = None, harness: HarnessManifest | None = None, sample: int = 0) -> RolloutSpec:
        return RolloutSpec(task or self.task(), harness or load_harness("react"), sample, sample)

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        return list(read_records(self.run_dir, kinds or None))


async def until(condition: Callable[[], object], wait_s: float = 15.0) -> None:
    """Wait for what cannot be told to a test in any other way."""
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        await asyncio.sleep(0.02)
