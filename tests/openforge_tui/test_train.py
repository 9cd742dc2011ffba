"""A training run from the desk's side: its plans and folders, and a trainer that dies in every way (fake_trainer.py)
beside the real orchestrator, recorder and harness. The real trainer: cli/test_train_real.py."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import Tokenizer

from cluster.runtimes import bwrap
from openforge.config.models import Config, Run, Trainer
from openforge.errors import InfraError, UsageError
from openforge.ids import RunId
from openforge.store.connect import query
from openforge_tui import train as train_module
from openforge_tui import train_set
from openforge_tui.steer import pause
from openforge_tui.train import (
    Stop,
    Training,
    _end_ray,
    _environment,
    _Supervisor,
    first_weights,
    train,
    trainer_folder,
    write_plans,
)
from trainer.checkpoints import MARKER, last_checkpoint, weights_of
from trainer.orchestrator import Orchestrator

sys.path.append(str(Path(__file__).parents[1] / "proxy_addons"))
from fake_live_policy import FakeLivePolicy

FAKE = Path(__file__).with_name("fake_trainer.py")
SECRET = "s3cret-of-the-policy"


@pytest.fixture
def model_dir(tmp_path: Path, qwen3_dir: Path) -> Path:
    """What the recorder and rendering read of a model: a tokenizer and a shape."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in qwen3_dir.iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "config.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 2}')
    return folder


@pytest.fixture
def training(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    run = Run(tasks=("desk/count-lines",), concurrency=2, retries=0, time_limit_s=60.0)
    config = Config(run=run, trainer=Trainer(steps=9, groups=2, eval_samples=3))
    return Training(
        config, tmp_path / "store", model_dir, RunId("r0train"), tmp_path, (sys.executable, "-P", str(FAKE))
    )


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_plans_are_written_once_and_a_resumed_run_reads_on_in_them(training: Training) -> None:
    write_plans(training)
    plan, evaluation = training.place().plan, training.place().eval_plan
    before = plan.read_bytes(), evaluation.read_bytes()
    assert len(read(plan)) == (9 + 1 + 4) * 2
    assert [group["purpose"] for group in read(evaluation)] == ["eval"] * 3
    other = training.config.model_copy(update={"run": training.config.run.model_copy(update={"seed": 7})})
    write_plans(Training(other, training.store_root, training.model_dir, training.run_id, training.project))
    assert (plan.read_bytes(), evaluation.read_bytes()) == before


def test_a_run_that_gets_more_steps_gets_a_longer_plan_that_begins_alike(training: Training) -> None:
    write_plans(training)
    before = training.place().plan.read_bytes()
    more = training.config.model_copy(update={"trainer": training.config.trainer.model_copy(update={"steps": 40})})
    write_plans(replace(training, config=more))
    after = training.place().plan.read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == (40 + 1 + 4) * 2


def test_a_run_begins_with_the_weights_that_it_began_with(training: Training, tmp_path: Path) -> None:
    write_plans(training)
    assert first_weights(training.folder) == training.model_dir
    (training.model_dir / "config.json").write_text('{"changed": true}')
    with pytest.raises(UsageError, match="not there any more"):
        first_weights(training.folder)


def test_a_run_that_was_killed_between_its_two_plans_gets_both(training: Training) -> None:
    write_plans(training)
    training.place().plan.unlink()
    whole = training.place().eval_plan.read_bytes()
    training.place().eval_plan.write_bytes(b"")
    write_plans(training)
    assert training.place().eval_plan.read_bytes() == whole
    assert sorted(path.name for path in training.folder.iterdir()) == ["eval.jsonl", "first_weights.json", "plan.jsonl"]


def checkpoint(folder: Path, step: int, *names: str) -> Path:
    saved = folder / f"global_step_{step}"
    saved.mkdir(parents=True)
    for name in names:
        (saved / name).write_text("{}")
    return saved


def test_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    checkpoint(tmp_path, 4, f"{MARKER}.partial")
    assert last_checkpoint(tmp_path) is None
    whole = checkpoint(tmp_path, 2, MARKER)
    assert last_checkpoint(tmp_path) == whole


def test_the_newest_checkpoint_is_that_of_the_most_steps(tmp_path: Path) -> None:
    newest = [checkpoint(tmp_path, step, MARKER) for step in (2, 10, 9)][1]
    assert last_checkpoint(tmp_path) == newest
    assert weights_of(newest) == newest / "actor" / "huggingface"


def test_the_trainer_goes_on_from_the_last_whole_checkpoint(training: Training) -> None:
    assert "trainer.resume_from_path=null" in training.overrides()
    saved = checkpoint(training.folder, 3, MARKER)
    checkpoint(training.folder, 4)
    assert f"trainer.resume_from_path='{saved}'" in training.overrides()


def test_what_is_no_training_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    with pytest.raises(UsageError, match="r1 is not a training run"):
        trainer_folder(tmp_path, "r1")


@pytest.fixture
def installed() -> None:
    if missing := train_set.missing():
        pytest.skip(f"{', '.join(missing)} not installed: ./just train-set")


@pytest.mark.usefixtures("installed")
def test_the_trainers_environment(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "mine")
    told = _environment(training, {"url": "http://o", "token": SECRET}, tmp_path / "ray")
    assert "PYTHONDONTWRITEBYTECODE" not in told  # torch parsed anew in each of a dozen processes
    assert told["PYTHONPATH"].split(os.pathsep)[0] == str(FAKE.parents[2])
    assert told["PYTHONPATH"].endswith(f"{os.pathsep}mine")
    assert told["VERL_PLATFORM"] == "cpu"
    assert told["RAY_TMPDIR"] == told["TMPDIR"] == str(tmp_path / "ray")  # the folder that is swept at the end
    assert told["TENSORBOARD_DIR"] == str(training.folder / "tensorboard")
    assert SECRET in told.values()
    assert not [text for text in training.overrides() if SECRET in text]  # arguments are there for all to see
    gpus = training.config.model_copy(update={"trainer": Trainer(gpus=8)})
    on_gpus = Training(gpus, training.store_root, training.model_dir, training.run_id, tmp_path)
    assert "VERL_PLATFORM" not in _environment(on_gpus, {"url": "http://o", "token": SECRET}, tmp_path)


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait()


def sleep_into(folder: Path, sleepers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """A process of its own that writes into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "worker.log").open("w") as log:
        sleepers.append(subprocess.Popen(["sleep", "300"], stdout=log, stderr=log, start_new_session=True))
    return sleepers[-1]


def test_only_what_writes_into_the_runs_folder_is_ended(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    mine = [sleep_into(tmp_path / "of-r1" / "logs", sleepers) for _ in range(2)]
    others = [sleep_into(tmp_path / name, sleepers) for name in ("of-r10", "of-r2/logs")]
    _end_ray(tmp_path / "of-r1")
    assert [process.wait(timeout=10) for process in mine] == [-signal.SIGKILL] * 2
    assert [process.poll() for process in others] == [None, None]
    assert not (tmp_path / "of-r1").exists()
    _end_ray(tmp_path / "of-r1")  # of nothing


def test_a_daemon_whose_output_is_a_pipe_is_ended_and_who_only_reads_is_not(
    tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    folder = tmp_path / "of-r1"
    folder.mkdir()
    with (folder / "agent.log").open("w") as log, (folder / "agent.log").open() as reading:
        for file in (log, reading):
            sleepers.append(subprocess.Popen(["sleep", "300"], stdout=subprocess.PIPE, pass_fds=[file.fileno()]))
    agent, reader = sleepers
    _end_ray(folder)
    assert agent.wait(timeout=10) == -signal.SIGKILL
    assert reader.poll() is None


class Watched:
    """A training with the fake trainer, and what it said and told. `at`: what to do once after so many events."""

    def __init__(self, training: Training, policy: FakeLivePolicy) -> None:
        self.training, self.policy = training, policy
        self.said: list[str] = []
        self.events: list[tuple[str, int]] = []
        self.stop = Stop()

    def begin(self, *lives: str) -> "asyncio.Task[int]":
        """Each life in words, with commas."""
        self.training.folder.mkdir(parents=True, exist_ok=True)
        words = [[word.strip() for word in life.split(",")] for life in lives]
        (self.training.folder / "lives.json").write_text(json.dumps(words))
        told = {"addresses": [self.policy.address], "token": SECRET, "weight_version": "0"}
        (self.training.folder / "policy.json").write_text(json.dumps(told))
        return asyncio.create_task(train(self.training, self.said.append, self._event, self.stop))

    def _event(self, event: Any) -> None:
        self.events.append((event["event"], event["step"]))

    @property
    def starts(self) -> list[str]:
        """Of each start of the trainer, the checkpoint it went on from."""
        return [start["resume"] for start in read(self.training.folder / "starts.jsonl")]

    @property
    def pid(self) -> int:
        return int(read(self.training.folder / "starts.jsonl")[-1]["pid"])

    def sql(self, columns: str) -> list[tuple[Any, ...]]:
        rows = query(self.training.store_root, f"SELECT {columns}", runs=[self.training.run_id])
        return [tuple(row.values()) for row in rows]


async def until(true: Any, within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 (processes have no event to wait for)
            await asyncio.sleep(0.02)


@pytest.fixture
async def watched(training: Training, qwen3_dir: Path, installed: None) -> AsyncIterator[Watched]:
    if problem := bwrap.probe():
        pytest.skip(problem)
    policy = FakeLivePolicy(Tokenizer.from_file(str(qwen3_dir / "tokenizer.json")), SECRET)
    await policy.start()
    yield Watched(training, policy)
    await policy.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.contract
async def test_a_trainer_that_crashed_or_was_killed_goes_on_and_no_rollout_counts_twice(watched: Watched) -> None:
    running = watched.begin(
        "ready, noise, step, save, step, exit 1", "ready, step, save, half, step", "ready, step, done"
    )
    await until(lambda: watched.events.count(("step", 2)) == 2)
    watched.policy.hold = asyncio.Event()
    await until(lambda: len(watched.policy.asked) == 4)
    os.kill(watched.pid, signal.SIGKILL)
    await until(lambda: watched.said and "signal 9" in watched.said[-1])
    watched.policy.hold = None
    assert await asyncio.wait_for(running, 60) == 3
    assert watched.starts == ["", "global_step_1", "global_step_2"]
    assert watched.said[-2:] == [
        "the trainer ended with exit code 1; 0 rollouts are void, it starts again from step 1",
        "the trainer was ended by signal 9; 1 rollouts are void, it starts again from step 2",
    ]
    trained = watched.sql("step, rollout_id FROM trained ORDER BY step")
    assert [step for step, _ in trained] == [1, 2, 3]
    by_state = dict(watched.sql("state, list(rollout_id ORDER BY sample) FROM rollouts GROUP BY state"))
    lost = by_state["done"][1]  # of the step 2 that was made again
    assert [name for _, name in trained] == [name for name in by_state["done"] if name != lost]
    assert len(by_state["cancelled"]) == 1
    assert watched.sql("state FROM runs") == [("done",)]


@pytest.mark.contract
async def test_a_trainer_that_refuses_its_configuration_is_not_started_again(watched: Watched) -> None:
    with pytest.raises(UsageError, match="the last words of the trainer") as error:
        await asyncio.wait_for(watched.begin("exit 2"), 60)
    assert error.value.hint == "openforge train --dry-run"
    assert watched.starts == [""]


@pytest.mark.contract
async def test_three_new_starts_without_a_step_between_are_enough(watched: Watched) -> None:
    with pytest.raises(InfraError, match=r"exit code 1 after step 1:[\s\S]*the last words of the trainer") as error:
        await asyncio.wait_for(watched.begin("exit 1", "exit 1", "ready, step, exit 1", "exit 1"), 120)
    assert error.value.hint is not None
    assert error.value.hint.endswith("openforge train --resume r0train")
    assert len(watched.starts) == 3 + 3
    assert watched.sql("state FROM runs") == [("error",)]


@pytest.mark.contract
async def test_asked_to_stop_it_ends_at_the_end_of_the_step_and_so_does_one_that_is_held(watched: Watched) -> None:
    watched.policy.hold = asyncio.Event()
    assert not watched.stop.ask()  # nothing is at work that could end by itself
    running = watched.begin("ready, step, step, hang")
    await until(lambda: watched.policy.asked)
    await pause(watched.training.store_root, ["latest"])
    watched.policy.hold.set()
    with pytest.raises(TimeoutError):  # the first step ends, the second waits for its rollout
        await until(lambda: ("step", 2) in watched.events, 3)
    assert watched.stop.ask()
    assert not watched.stop.ask()  # the second time is meant
    assert await asyncio.wait_for(running, 60) == 2
    assert watched.events[-2:] == [("stopping", 2), ("done", 2)]
    assert last_checkpoint(watched.training.folder) == watched.training.folder / "global_step_2"
    assert len(watched.starts) == 1


@pytest.mark.contract
async def test_a_long_silence_is_told_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "_SILENCE_S", 0.2)
    running = watched.begin("ready, hang")
    await until(lambda: watched.events)  # ready: from here on it is silent
    watched.said.clear()
    await asyncio.sleep(0.7)
    running.cancel()
    run = watched.training.run_id
    assert watched.said == [f"no word from the trainer for 0 min; see: openforge logs --trainer {run}"]


@pytest.mark.contract
async def test_a_policy_that_died_takes_the_trainer_with_it_and_both_come_again(watched: Watched) -> None:
    watched.policy.hold = asyncio.Event()
    running = watched.begin("ready, step, hang", "ready, step, done")
    await until(lambda: watched.policy.asked)
    face = json.loads((watched.training.run_dir / "orchestrator.json").read_text())
    orchestrator = Orchestrator(face["url"], face["token"])
    await orchestrator.ask("DELETE", "/policies/default")  # as the agent loop says it
    await orchestrator.close()
    await until(lambda: "signal 9" in watched.said[-1])
    assert "the policy being trained has died" in watched.said
    watched.policy.hold = None
    assert await asyncio.wait_for(running, 60) == 1
    assert watched.sql("count(*) FROM trained") == [(1,)]
    [void, done] = watched.sql("state, error_class FROM rollouts ORDER BY sample")
    assert void in {("error", "policy"), ("cancelled", None)}  # by the orchestrator, or by the new start
    assert done == ("done", None)


@pytest.mark.contract
async def test_interrupted_it_leaves_no_process_and_no_folder(
    watched: Watched, sleepers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    ray_dir = tmp_path / "tmp" / "of-r0train"
    left_before = sleep_into(ray_dir, sleepers)  # by a run that was killed whole and now goes on
    running = watched.begin("daemon, ready, hang")
    await until(lambda: watched.events)
    assert left_before.poll() == -signal.SIGKILL
    [daemon] = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if writes_into(pid, ray_dir)]
    trainer = watched.pid
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert not alive(trainer)
    assert not alive(daemon)
    assert not ray_dir.exists()


def writes_into(pid: int, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/1").startswith(f"{folder}/")
    except OSError:
        return False


async def test_a_full_disk_ends_the_training_with_what_to_do(training: Training) -> None:
    """/dev/full takes nothing, as a full disk does."""
    training.folder.mkdir(parents=True)
    supervisor = _Supervisor(training, cast(Any, None), asyncio.Event(), print, lambda event: None, Stop())
    supervisor._log = Path("/dev/full")
    process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
    with pytest.raises(InfraError, match="No space left on device") as error:
        await supervisor._read(process)
    await process.wait()
    assert f"openforge train --resume {training.run_id}" in error.value.hint
