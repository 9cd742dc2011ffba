"""A training run: the orchestrator here, the trainer as a child process, started again from its last checkpoint when it
dies.

What each of them is told and tells is in cluster/http.py and trainer/main.py; this holds them together.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from cluster.http import FILE_NAME
from cluster.launch import live_engine, orchestrate
from cluster.orchestrator import Orchestrator
from cluster.policy_server import model_hash, vllm_environment
from cluster.recorder_process import ROOT
from openforge.config import Config
from openforge.errors import InfraError, UsageError
from openforge.ids import RunId
from openforge.program import end_with_parent
from openforge.program_log import note_program
from openforge.task import load_tasks
from trainer.checkpoints import checkpoint_step, last_checkpoint
from trainer.orchestrator import EVENT, TOKEN, URL
from trainer.plan import evaluation_groups, training_groups, write_plan
from trainer.render import Place, overrides
from trainer.settings import TrainSettings
from trainer.verl_plugins import CPU_ENVIRONMENT, GPU_ENVIRONMENT

_RESTARTS = 3
_SILENCE_S = 600.0
_REFUSED = 2  # the exit code of a trainer that does not take its configuration
_PROGRAM = (sys.executable, "-P", "-m", "trainer.main", "hydra.run.dir=.", "hydra.output_subdir=null")
_FIRST = "first_weights.json"
_SPARE = 4  # steps' worth of groups beyond the last one, for groups that veRL throws away and asks for again

Say = Callable[[str], None]
OnEvent = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Training:
    """One training run: what is trained, and where it lies. `program`: the trainer, told veRL's keys as arguments."""

    config: Config
    store_root: Path
    model_dir: Path
    run_id: RunId
    project: Path
    program: tuple[str, ...] = _PROGRAM

    @property
    def run_dir(self) -> Path:
        return self.store_root / "runs" / self.run_id

    @property
    def folder(self) -> Path:
        return self.run_dir / "trainer"

    def settings(self) -> TrainSettings:
        return TrainSettings.from_config(self.config, self.model_dir)

    def place(self) -> Place:
        """Where the trainer reads and writes; it goes on from the last whole checkpoint."""
        folder = self.folder
        resume = last_checkpoint(folder)
        return Place(folder / "plan.jsonl", folder / "eval.jsonl", folder, folder / "tensorboard", resume)

    def overrides(self) -> list[str]:
        """What the trainer is told, in veRL's keys."""
        return overrides(self.settings(), self.place())


def write_plans(training: Training) -> None:
    """What will be rolled out and which weights it begins with, decided once: a resumed run reads on in the same files,
    and a plan that is too short for more steps gets longer."""
    place, settings, config = training.place(), training.settings(), training.config
    tasks = [task.ref for task in load_tasks(settings.tasks)]
    count = (settings.steps + settings.max_staleness + _SPARE) * settings.groups
    groups = training_groups(tasks, dict(settings.mix), count, config.run.seed)
    if not place.plan.exists():
        eval_tasks = [task.ref for task in load_tasks(settings.eval_tasks)]
        evaluation = evaluation_groups(eval_tasks, settings.eval_harnesses, settings.eval_samples, config.run.seed)
        write_plan(place.eval_plan, evaluation)
        first = {"folder": str(training.model_dir), "hash": model_hash(training.model_dir)}
        (training.folder / _FIRST).write_bytes(orjson.dumps(first))
    elif len(place.plan.read_bytes().splitlines()) >= count:
        return
    write_plan(place.plan, groups)  # last: it says "done"


def first_weights(folder: Path) -> Path:
    """The model folder that the training run of a trainer's folder began with. UsageError when it is not there as it
    was: a policy that is made anew under the same name has other weights."""
    try:
        told = orjson.loads((folder / _FIRST).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{folder} does not say which weights it began with", hint="start a new run") from None
    model_dir = Path(told["folder"])
    if not (model_dir / "config.json").is_file() or model_hash(model_dir) != told["hash"]:
        raise UsageError(
            f"{folder.parent.name} began with the weights in {model_dir}, and they are not there any more",
            hint="bring them back from a copy, or start a new run",
        )
    return model_dir


class Stop:
    """Asked to end at the end of a step. `ask` is for a signal handler: True when the training will end by itself.

    `process` is the trainer while it is at work; one that is still starting has no step to end. `unpause`: a training
    that is held does not come to the end of its step.
    """

    def __init__(self) -> None:
        self.asked = False
        self.unpause: Callable[[], object] = lambda: None
        self.process: asyncio.subprocess.Process | None = None

    def ask(self) -> bool:
        if self.asked or self.process is None or self.process.returncode is not None:
            return False
        self.asked = True
        os.kill(self.process.pid, signal.SIGTERM)
        self.unpause()
        return True


async def train(training: Training, say: Say, on_event: OnEvent, stop: Stop) -> int:
    """Train to the end, or to the end of the step under way when `stop` is asked; the last step that was trained.

    A trainer that dies is started again from its last checkpoint, three times at most without a step between. Raises
    InfraError with the end of its log when that does not help.
    """
    write_plans(training)
    engine = live_engine()
    async with orchestrate(
        training.config,
        training.store_root,
        engine,
        model_dir=training.model_dir,
        run_id=training.run_id,
        project=training.project,
        say=say,
    ) as orchestrator:
        stop.unpause = partial(orchestrator.pause, False)
        supervisor = _Supervisor(training, orchestrator, engine.died, say, on_event, stop)
        running = asyncio.create_task(supervisor.run())
        watching = asyncio.create_task(orchestrator.watch())  # a journal that breaks ends the training
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            return await running
        finally:
            for task in (running, watching):
                task.cancel()
            await asyncio.gather(running, watching, return_exceptions=True)


class _Supervisor:
    def __init__(
        self,
        training: Training,
        orchestrator: Orchestrator,
        died: asyncio.Event,
        say: Say,
        on_event: OnEvent,
        stop: Stop,
    ) -> None:
        self._training, self._orchestrator, self._died = training, orchestrator, died
        self._say, self._on_event, self._stop = say, on_event, stop
        self._log = training.run_dir / "logs" / "trainer.log"
        self._step = 0
        self._progressed = self._done = False
        self._heard = asyncio.Event()

    async def run(self) -> int:
        failures = 0
        while True:
            self._progressed = False
            code = await self._once()
            if self._done:
                return self._step
            if code == _REFUSED:
                raise UsageError(_tail(self._log), hint="openforge train --dry-run")
            failures = 1 if self._progressed else failures + 1
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if failures > _RESTARTS or self._stop.asked:
                raise InfraError(
                    f"the trainer {how} after step {self._step}:\n{_tail(self._log)}",
                    hint=f"see {self._log}; go on with: openforge train --resume {self._training.run_id}",
                )
            cancelled = await self._orchestrator.cancel_all()
            self._died.clear()
            checkpoint = last_checkpoint(self._training.folder)
            where = "the beginning" if checkpoint is None else f"step {checkpoint_step(checkpoint)}"
            self._say(f"the trainer {how}; {len(cancelled)} rollouts are void, it starts again from {where}")

    async def _once(self) -> int:
        """One life of the trainer; its exit code."""
        async with _process(self._training, self._log) as process:
            reading = asyncio.create_task(self._read(process))
            aside = [asyncio.create_task(task) for task in (self._end_with_policy(process), self._tell_silence())]
            try:
                await reading
                return await process.wait()
            finally:
                for task in (reading, *aside):
                    task.cancel()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            with self._log.open("ab", buffering=0) as log:  # unbuffered: nothing is left to fail when it closes
                while line := await _line(process.stdout):
                    log.write(line)
                    if (event := _event(line)) is not None:
                        self._take(event, process)
        except OSError as error:
            raise InfraError(
                f"what the trainer prints cannot be kept in {self._log}: {error.strerror}",
                hint=f"free some space there; then: openforge train --resume {self._training.run_id}",
            ) from error

    async def _tell_silence(self) -> None:
        """A long step and a trainer that waits for a dead worker look alike from here: a person can tell by its log."""
        while True:
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), _SILENCE_S)
            except TimeoutError:
                if self._orchestrator.state == "paused":
                    continue
                minutes, run = round(_SILENCE_S / 60), self._training.run_id
                self._say(f"no word from the trainer for {minutes} min; see: openforge logs --trainer {run}")
                await self._heard.wait()

    def _take(self, event: Mapping[str, Any], process: asyncio.subprocess.Process) -> None:
        self._heard.set()
        if event["event"] == "ready":
            self._stop.process = process
        if event["event"] == "step":
            self._step, self._progressed = event["step"], True
        self._done = self._done or event["event"] == "done"
        self._on_event(event)

    async def _end_with_policy(self, process: asyncio.subprocess.Process) -> None:
        """veRL does not start a dead inference engine again: the whole trainer is."""
        await self._died.wait()
        self._say("the policy being trained has died")
        os.kill(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def _process(training: Training, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The trainer; however it ends, nothing of it is left."""
    face = orjson.loads((training.run_dir / FILE_NAME).read_bytes())
    ray_dir = _ray_dir(training.run_id)
    await asyncio.to_thread(_end_ray, ray_dir)  # what a run left that was killed, before it goes on here
    ray_dir.mkdir(mode=0o700)  # Ray makes its own folders in it writable for everybody
    log.parent.mkdir(parents=True, exist_ok=True)
    argv = (*training.program, *training.overrides())
    note_program(argv)
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=training.folder,
        env=_environment(training, face, ray_dir),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
        limit=1 << 24,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        await asyncio.to_thread(_end_ray, ray_dir)


def verl_environment(config: Config) -> dict[str, str]:
    """The environment of every process that loads veRL."""
    cpu = config.trainer.gpus == 0  # and so on this machine, whatever Ray cluster RAY_ADDRESS names
    left_out = {"PYTHONDONTWRITEBYTECODE", *(["RAY_ADDRESS"] if cpu else [])}
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    vllm = vllm_environment()
    return {
        **inherited,
        **vllm,
        **(CPU_ENVIRONMENT if cpu else GPU_ENVIRONMENT),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), vllm["PYTHONPATH"]])),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
        "VERL_LOGGING_LEVEL": "WARNING",  # below it, veRL's separate_async without a hybrid engine fails while logging
    }


def _environment(training: Training, face: Mapping[str, str], ray_dir: Path) -> dict[str, str]:
    return {
        **verl_environment(training.config),
        URL: face["url"],
        TOKEN: face["token"],
        "TENSORBOARD_DIR": str(training.place().tensorboard),
        "RAY_TMPDIR": str(ray_dir),
        "TMPDIR": str(ray_dir),  # vLLM's sockets and veRL's locks stay behind wherever they are: here they are swept
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def _ray_dir(run_id: RunId) -> Path:
    """As the kernel names it. Ray's sockets have long names, and the path of a socket may have 107 bytes."""
    return Path(os.environ.get("TMPDIR", "/tmp")).resolve() / f"of-{run_id}"


def _end_ray(ray_dir: Path) -> None:
    """Ray's daemons and actors outlive a driver that was killed: ended are those that write into this run's folder."""
    for _ in range(20):
        ours = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _writes_into(pid, ray_dir)]
        if not ours:
            break
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(ray_dir, ignore_errors=True)


def _writes_into(pid: int, folder: Path) -> bool:
    """Whether it has a file below `folder` open for writing, under any number: the output of Ray's agents is a pipe."""
    try:
        return any(_written(f"/proc/{pid}", number, folder) for number in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # it ended, or is not ours


def _written(process: str, number: str, folder: Path) -> bool:
    try:
        if not os.readlink(f"{process}/fd/{number}").startswith(f"{folder}/"):
            return False
        told = dict(line.split(":", 1) for line in Path(f"{process}/fdinfo/{number}").read_text().splitlines())
    except OSError:
        return False  # closed meanwhile
    return int(told["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than the limit: no event of ours is
        return b"...\n"


def _event(line: bytes) -> dict[str, Any] | None:
    """What the trainer told; None for a line that somebody else printed, also into the middle of an event."""
    if not line.startswith(EVENT.encode()):
        return None
    try:
        told = orjson.loads(line[len(EVENT) :])
    except orjson.JSONDecodeError:
        return None
    return told if isinstance(told, dict) else None


def _tail(log: Path, lines: int = 20) -> str:
    if not log.exists():
        return ""
    text = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith(EVENT)]
    return "\n".join(text[-lines:])


def trainer_folder(store_root: Path, run_id: str) -> Path:
    """The trainer's folder of a training run. UsageError when that run trained nothing."""
    folder = store_root / "runs" / run_id / "trainer"
    if not (folder / "plan.jsonl").is_file():
        raise UsageError(f"{run_id} is not a training run", hint="openforge runs")
    return folder
