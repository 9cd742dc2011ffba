"""`openforge eval` as a person types it: two policies of a scripted provider, real harness, sandbox and recorder."""

import asyncio
import csv
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openforge.config import Config
from openforge.config.models import Policy, Run, Sampling
from openforge.config.render import public
from openforge.ids import RecorderId, RunId, split_rollout_id
from openforge.journal.writer import JournalWriter
from openforge.store.connect import query
from openforge_tui.cli import settings
from openforge_tui.cli.eval import _plan
from trainer.checkpoints import MARKER

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))

from desk import Desk
from model_server import ModelServer

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.contract


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    server = ModelServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def desk(tmp_path: Path, model: ModelServer) -> Desk:
    return Desk(tmp_path, model)


async def start(desk: Desk, *typed: str) -> asyncio.subprocess.Process:
    """`openforge eval` of the provider's model `m`, on two tasks."""
    tasks = f"{desk.task(name='one').root},{desk.task(name='two').root}"
    chosen = ("policy.engine=openai", "run.mode=record", f"policy.base_url={desk.model.url}", "policy.model=m")
    provider = [word for setting in (*chosen, "run.retries=0") for word in ("--set", setting)]
    argv = [sys.executable, "-P", "-m", "openforge_tui", "--project", str(desk.root), "--store", str(desk.store)]
    return await asyncio.create_subprocess_exec(
        *(*argv, "eval", "--tasks", tasks, *provider, *typed),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def evaluate(desk: Desk, *typed: str) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of the whole command."""
    process = await start(desk, *typed)
    out, said = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode, out.decode(), said.decode()


def solve(samples: dict[str, list[int]]) -> Any:
    """Commands that solve these samples of each task, and write something wrong in the others."""

    def commands(session: str, n: int) -> str | None:
        parts = split_rollout_id(session)
        right = parts.sample in samples[parts.task]
        return [f"echo {42 if right else 41} > answer.txt", None][n]

    return commands


async def test_a_row_a_harness_and_policy_with_intervals_and_the_numbers_in_the_store(desk: Desk) -> None:
    desk.model.commands = solve({"one": [0, 1], "two": [0]})
    typed = ("--policy", "m1,m2", "--samples", "2", "-k", "1,2", "--seed", "5", "--temperature", "0.5", "-o", "json")
    code, out, said = await evaluate(desk, *typed)
    assert code == 0, said
    rows = json.loads(out)
    assert [(row["policy"], row["harness"]) for row in rows] == [
        *[("m1", "react"), ("m1", "all")],
        *[("m2", "react"), ("m2", "all")],
    ]
    for row in rows:
        assert (row["step"], row["tasks"], row["n"], row["errors"], row["success"]) == (0, 2, 4, 0, 0.75)
        assert (row["pass_at_1"], row["pass_at_2"], row["pass_hat_2"]) == (0.75, 1.0, 0.5)
        assert row["success_low"] == pytest.approx(0.3006, abs=1e-4)
        assert row["pass_hat_2_low"] < 0.5 < row["pass_hat_2_high"]
    runs = list(dict.fromkeys(row["run_id"] for row in rows))
    assert len(runs) == 2
    assert all(f"next: openforge rollouts {run_id}" in said for run_id in runs)
    kept = query(desk.store, "SELECT run_id, step, name, value FROM metrics WHERE name = 'eval.pass_hat_k'")
    assert sorted(row["run_id"] for row in kept) == sorted(runs)
    assert {(row["step"], row["value"]) for row in kept} == {(0, 0.5)}
    named = query(desk.store, "SELECT DISTINCT name FROM metrics")
    assert {"eval.success", "eval.success.react", "eval.success.low"} <= {row["name"] for row in named}
    [told, _] = query(desk.store, "SELECT config::JSON->>'$.policy.sampling.temperature' AS temperature FROM runs")
    assert told == {"temperature": "0.5"}
    seeds = query(desk.store, "SELECT DISTINCT seed FROM rollouts ORDER BY seed")
    assert [row["seed"] for row in seeds] == [1_000_005, 1_000_006]


async def test_the_table_is_short_and_other_formats_whole(desk: Desk) -> None:
    desk.model.commands = solve({"one": [0], "two": []})
    code, out, said = await evaluate(desk, "--samples", "1")
    assert code == 0, said
    header, react, every = out.splitlines()
    assert header.split() == ["policy", "harness", "n", "errors", "success", "95", "%", "pass@1", "pass^1"]
    assert react.split() == ["m", "react", "2", "0", "0.5", "0.09–0.91", "0.5", "0.5"]
    assert every.split()[1] == "all"
    code, out, said = await evaluate(desk, "--samples", "1", "-o", "csv")
    [whole, _] = csv.DictReader(io.StringIO(out))
    assert (whole["success"], whole["success_low"], whole["pass_at_1"]) == ("0.5", "0.0945312", "0.5")


async def test_errors_of_ours_are_counted_and_take_only_the_k_they_touch(desk: Desk) -> None:
    desk.model.commands = solve({"one": [0, 1], "two": [0, 1]})
    desk.model.broken_for = ".two.react.1"
    code, out, said = await evaluate(desk, "--samples", "2", "-k", "1,2", "-o", "json")
    assert code == 0, said
    [react, _] = json.loads(out)
    assert (react["n"], react["errors"], react["success"], react["pass_at_1"]) == (3, 1, 1.0, 1.0)
    assert "pass_at_2" not in react
    assert "no k of 2 for react" in said


async def test_what_was_evaluated_before_ctrl_c_is_still_shown(desk: Desk) -> None:
    runs: list[str] = []
    second = asyncio.Event()

    def commands(session: str, n: int) -> str | None:
        run_id = split_rollout_id(session).run_id
        runs.extend({run_id} - set(runs))
        if len(runs) == 2:
            second.set()
            return "sleep 100"
        return ["echo 42 > answer.txt", None][n]

    desk.model.commands = commands
    process = await start(desk, "--policy", "m1,m2", "--samples", "1", "-o", "json")
    await asyncio.wait_for(second.wait(), 60)
    process.send_signal(signal.SIGINT)
    out, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, said.decode()
    assert [(row["policy"], row["success"]) for row in json.loads(out)] == [("m1", 1.0)] * 2
    kept = query(desk.store, "SELECT DISTINCT run_id FROM metrics")
    assert [row["run_id"] for row in kept] == runs[:1]


async def test_nothing_but_errors_is_exit_code_3_and_no_success(desk: Desk) -> None:
    desk.model.broken_for = ".react."
    code, out, said = await evaluate(desk, "--samples", "1", "-o", "json")
    assert code == 3, said
    [react, _] = json.loads(out)
    assert (react["n"], react["errors"], react["success"]) == (0, 2, None)
    kept = {row["name"]: row["value"] for row in query(desk.store, "SELECT name, value FROM metrics")}
    assert kept == {"eval.n": 0, "eval.errors": 2}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--samples", "2", "-k", "4"), "k = 4 needs k rollouts"),
        (("-k", "one"), "expected whole numbers"),
        (("--policy", ","), "nothing is named"),
        (("--seed", "-1"), "seed -1"),
        (("--harness", "no-such"), "no harness is called"),
        (("--set", "policy.engine=vllm", "--policy", "r9@3"), "no run"),
        (("--temperature", "-1"), "temperature"),
    ],
)
async def test_what_cannot_be_evaluated_is_said_before_anything_runs(
    desk: Desk, typed: tuple[str, ...], says: str
) -> None:
    code, out, said = await evaluate(desk, *typed)
    assert (code, out) == (2, ""), said
    assert says in said
    assert not (desk.store / "runs").exists()


def test_a_step_of_a_run_is_evaluated_as_that_run_was_configured(tmp_path: Path) -> None:
    sampling, run = Sampling(max_tokens=77), Run(tasks=("desk/set-port",), harnesses=("react",), max_calls=5)
    config = Config(policy=Policy(sampling=sampling), run=run)
    journal = JournalWriter(tmp_path / "runs" / "r1", RecorderId("orchestrator-a"), RunId("r1"))
    told = {"tasks": ["desk"], "samples": 1, "policy": {}, "version": "0", "harnesses": ["react"]}
    journal.append("run.start", config=public(config), **told)
    journal.close()
    folder = tmp_path / "runs" / "r1" / "trainer" / "global_step_2" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", f"../../{MARKER}"):
        (folder / name).write_text("{}")
    settings.reset()
    settings.change(project=tmp_path, store=tmp_path, overrides={"run.max_calls": "3", "trainer.eval_samples": "2"})
    [planned] = _plan(settings.current().load(), "r1@2", None)
    settings.reset()
    used = planned.config
    assert (used.policy.model, used.policy.sampling.max_tokens, used.run.max_calls) == (str(folder), 77, 3)
    assert [(spec.task.ref, spec.harness.name, spec.step) for spec in planned.specs] == [
        ("desk/set-port", "react", 2)
    ] * 2


async def test_one_server_is_not_taken_for_two_policies(desk: Desk, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    code, _, said = await evaluate(desk, "--set", "policy.engine=vllm", "--set", "run.mode=train", "--policy", both)
    assert code == 2, said
    assert "has one policy, and 2 are to be evaluated" in said
