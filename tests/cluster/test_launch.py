"""From a configuration to a run: which rollouts, what the recorder is told, and the whole way by the command line."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from desk import Desk
from model_server import ModelServer

from cluster.launch import Engine, engine_for, live_engine, make_specs, recorder_settings, serving_of
from openforge.config.models import Config, Policy, Run
from openforge.errors import UsageError
from openforge.ids import RunId
from openforge.store.connect import query

ROOT = Path(__file__).parents[2]


def test_sample_n_of_a_task_has_the_same_seed_in_every_harness() -> None:
    config = Config(run=Run(tasks=("desk/count-lines", "desk/fix-mean"), harnesses=("react", "pi"), samples=3, seed=10))
    specs = make_specs(config)
    assert len(specs) == 12
    assert {(spec.sample, spec.seed) for spec in specs} == {(0, 10), (1, 11), (2, 12)}


def test_the_recorder_is_told_the_runs_sampling_and_the_key_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("http://x/v1", "7", asyncio.Event())
    policy = Policy(engine="openai", model="gpt", base_url="http://x/v1", api_key_env="TEST_KEY")
    with pytest.raises(UsageError, match="TEST_KEY"):
        recorder_settings(Config(policy=policy), RunId("r1"), tmp_path, engine, None)
    monkeypatch.setenv("TEST_KEY", "sk-test")
    told = recorder_settings(Config(policy=policy), RunId("r1"), tmp_path, engine, None)
    assert told["mode"] == "record"
    assert told["engine"] == {
        "kind": "openai",
        "url": "http://x/v1",
        "model": "gpt",
        "api_key": "sk-test",
        "weight_version": "7",
    }
    trained = recorder_settings(Config(), RunId("r1"), tmp_path, engine, tmp_path)
    assert (trained["mode"], trained["engine"]["kind"], trained["model_dir"]) == ("train", "vllm", str(tmp_path))


def test_a_recorder_of_a_trainer_is_told_no_address(tmp_path: Path) -> None:
    told = recorder_settings(Config(), RunId("r1"), tmp_path, live_engine(), tmp_path)
    assert (told["mode"], told["engine"]["kind"], told["engine"]["url"]) == ("train", "trainer", "")
    with pytest.raises(UsageError, match='mode is "record"'):
        recorder_settings(Config(run=Run(mode="record")), RunId("r1"), tmp_path, live_engine(), tmp_path)


async def test_a_provider_without_an_address_is_an_error_that_says_so() -> None:
    with pytest.raises(UsageError, match="base_url"):
        async with engine_for(Config(policy=Policy(engine="openai")), None, lambda text: None):
            pass


@pytest.mark.parametrize(("has", "served"), [(8192, 8192), (40960, 16384), (None, 16384)])
def test_a_context_longer_than_the_models_own_is_cut_and_said(tmp_path: Path, has: int | None, served: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": has}))
    said: list[str] = []
    assert serving_of(Policy(), tmp_path, said.append).max_model_len == served
    assert len(said) == (served < 16384)


async def start(desk: Desk, *typed: str) -> asyncio.subprocess.Process:
    provider = [
        "--set",
        "policy.engine=openai",
        "--set",
        "run.mode=record",
        "--set",
        f"policy.base_url={desk.model.url}",
        "--policy",
        "m",
    ]
    argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(desk.root), "--store", str(desk.store)]
    return await asyncio.create_subprocess_exec(
        *(*argv, "run", "--tasks", str(desk.task().root), *provider, *typed),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.contract
@pytest.mark.usefixtures("isolated")
async def test_openforge_run_prints_one_line_a_rollout_and_a_table_by_harness(desk: Desk, model: ModelServer) -> None:
    model.commands = lambda session, n: ["echo 42 > answer.txt", None][n]
    process = await start(desk, "--samples", "2", "-o", "json")
    out, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()
    [row] = json.loads(out)
    assert (row["harness"], row["rollouts"], row["done"], row["reward"], row["calls"]) == ("react", 2, 2, 1.0, 4)
    assert said.decode().count(" done reward 1 ") == 2
    [run_dir] = (desk.store / "runs").iterdir()
    assert (run_dir / "parquet" / "manifest.json").is_file()


@pytest.mark.contract
@pytest.mark.usefixtures("isolated")
async def test_ctrl_c_ends_with_130_and_leaves_no_process(desk: Desk, model: ModelServer) -> None:
    model.hang = True
    process = await start(desk)
    await asyncio.wait_for(model.called.wait(), 40)
    os.kill(process.pid, signal.SIGINT)
    _, said = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130, said.decode()
    left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _mentions(pid, str(desk.store))]
    assert left == []
    [run_dir] = (desk.store / "runs").iterdir()
    assert not (run_dir / "orchestrator.json").exists()
    desk.run_dir = run_dir
    assert [record["state"] for record in desk.records("run.end")] == ["cancelled"]


@pytest.mark.contract
@pytest.mark.usefixtures("isolated")
async def test_a_run_whose_orchestrator_was_killed_is_taken_up_again(desk: Desk, model: ModelServer) -> None:
    model.hang = True
    process = await start(desk)
    await asyncio.wait_for(model.called.wait(), 40)
    [run_dir] = (desk.store / "runs").iterdir()
    async with asyncio.timeout(10):
        with pytest.raises(UsageError, match="another orchestrator has it"):
            async with desk.orchestrator(run_id=RunId(run_dir.name)):
                pass
    process.kill()
    await asyncio.wait_for(process.communicate(), 30)
    model.hang, model.commands = False, lambda session, n: ["echo 42 > answer.txt", None][n]
    async with desk.orchestrator(run_id=RunId(run_dir.name)) as orchestrator:
        [left] = orchestrator.roster.accounts()
        assert (left.state, left.attempt) == ("lost", 0)
        assert rows(desk, "SELECT state FROM runs") == [("running",)]
        assert rows(desk, "SELECT state FROM rollouts") == [("lost",)]
        [rollout] = await orchestrator.run_all([desk.spec()])
    assert (rollout.id, rollout.attempt, rollout.reward) == (left.rollout_id, 1, 1.0)
    assert rows(desk, "SELECT state FROM runs") == [("done",)]
    assert rows(desk, "SELECT attempt, state, reward FROM attempts ORDER BY attempt") == [
        (0, "lost", None),
        (1, "done", 1.0),
    ]


def rows(desk: Desk, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in query(desk.store, sql)]


def _mentions(pid: int, text: str) -> bool:
    try:
        return pid != os.getpid() and text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
