"""A tiny model is trained for real through a harness, and everything of it is killed on the way.

One run of about ten minutes, most of which are three starts of the trainer, and all that is true of it at its end. A
file of its own: it shares neither vLLM nor runs with test_demo.py, and so the two have a worker each.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openforge.store.connect import query
from openforge_tui.train import _end_ray, _ray_dir
from trainer.checkpoints import last_checkpoint, weights_of
from trainer.versions import step_of

pytestmark = [pytest.mark.policy, pytest.mark.timeout(1200)]
STEPS, GROUPS, SIZE = 3, 2, 4
EVALUATED = ("desk/count-lines", "desk/fix-mean")
SETTINGS = {
    "trainer.steps": STEPS,
    "trainer.groups": GROUPS,
    "trainer.group_size": SIZE,
    "trainer.eval_samples": 1,
    "trainer.eval_tasks": ",".join(EVALUATED),
    "trainer.save_every": 1,
    "trainer.kl": 0.001,  # with a reference model, as the larger recipes have
}


class RealRun:
    """`openforge train` as a process, and the run it makes in the store of a project folder."""

    def __init__(self, project: Path) -> None:
        self.project, self.store = project, project / ".openforge"
        self.narration = project / "narration.txt"
        self.process: subprocess.Popen[str] | None = None

    def start(self, *words: str) -> None:
        with self.narration.open("a") as narration:
            self.process = subprocess.Popen(
                openforge(self.project, "train", *words, "-o", "json"),
                stdout=subprocess.PIPE,
                stderr=narration,
                cwd=self.project,
                text=True,
            )

    @property
    def run_id(self) -> str:
        [folder] = (self.store / "runs").iterdir()
        return folder.name

    @property
    def run_dir(self) -> Path:
        return self.store / "runs" / self.run_id

    def said(self) -> str:
        return self.narration.read_text()

    def ask(self, path: str) -> dict[str, Any]:
        """What the orchestrator answers; nothing while it is not there."""
        try:
            face = json.loads((self.run_dir / "orchestrator.json").read_text())
            request = urllib.request.Request(face["url"] + path, headers={"authorization": f"Bearer {face['token']}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def until(self, what: str, true: Callable[[], Any], within_s: float = 400) -> Any:
        end_s = time.monotonic() + within_s
        while not (found := true()):
            assert self.process is not None
            assert self.process.poll() is None, f"it ended before {what}:\n{self._told()}"
            assert time.monotonic() < end_s, f"waited {within_s} s for {what}:\n{self._told()}"
            time.sleep(0.1)
        return found

    def until_sampling(self, step: int) -> None:
        """Until rollouts of this step are under way."""

        def sampling() -> bool:
            found = self.ask(f"/rollouts?purpose=train&step={step}").get("rollouts", [])
            return any(rollout["state"] == "running" for rollout in found)

        self.until(f"rollouts of step {step}", sampling)

    def _told(self) -> str:
        log = self.store / "runs" / self.run_id / "logs" / "trainer.log"
        return self.said()[-3000:] + (log.read_text(errors="replace")[-3000:] if log.exists() else "")

    def children(self, text: str) -> list[int]:
        """Processes that `openforge train` started itself, by what stands in their command line."""
        assert self.process is not None
        mine = f"\nPPid:\t{self.process.pid}\n"
        return [pid for pid in pids() if mine in read(pid, "status") and text in read(pid, "cmdline")]

    def engines(self) -> list[int]:
        """The process of vLLM that computes."""
        ray_dir = _ray_dir(self.run_id)  # type: ignore[arg-type]
        return [pid for pid in pids() if "EngineCore" in read(pid, "cmdline") and str(ray_dir) in read(pid, "environ")]

    def left(self) -> list[str]:
        """What still runs and has to do with this run."""
        signs = (self.run_id, str(self.project))
        found = {pid: read(pid, "cmdline") for pid in pids() if any(sign in read(pid, "environ") for sign in signs)}
        found |= {pid: line for pid in pids() if any(sign in (line := read(pid, "cmdline")) for sign in signs)}
        return [line[:200] for pid, line in found.items() if pid != os.getpid() and line]

    def left_after(self, grace_s: float) -> list[str]:
        """A process that was killed is there for a moment."""
        end_s = time.monotonic() + grace_s
        while (found := self.left()) and time.monotonic() < end_s:
            time.sleep(0.2)
        return found

    def sql(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in query(self.store, sql, runs=[self.run_id])]

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for folder in (self.store / "runs").glob("*"):
            _end_ray(_ray_dir(folder.name))  # type: ignore[arg-type]


def openforge(project: Path, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "openforge_tui", "--project", str(project), *words]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # it ended meanwhile, or is not ours


@pytest.fixture
def run(starter_dir: Path, tmp_path: Path) -> Iterator[RealRun]:
    made = RealRun(tmp_path)
    yield made
    made.end()


def test_a_tiny_model_learns_through_a_harness_while_everything_is_killed_in_turn(
    run: RealRun, starter_dir: Path
) -> None:
    sets = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    run.start("--recipe", "tiny-cpu", "--harness", "react", *sets)

    run.until_sampling(1)
    [recorder] = run.children("proxy_addons")
    os.kill(recorder, signal.SIGKILL)

    run.until_sampling(2)
    assert run.ask("/status")["recorders"][0]["starts"] == 2
    [engine] = run.engines()
    os.kill(engine, signal.SIGKILL)
    run.until("the policy's death", lambda: "the policy being trained has died" in run.said())
    run.until("the trainer's new start", lambda: "it starts again from step 1" in run.said())

    run.until_sampling(3)
    os.kill(run.ask("/status")["trainer"]["pid"], signal.SIGKILL)
    run.until("the trainer's second new start", lambda: "it starts again from step 2" in run.said())
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    run.start("--resume", run.run_id)
    out, _ = run.process.communicate(timeout=400)
    assert run.process.returncode == 0, run.said()[-3000:]
    assert [row["step"] for row in json.loads(out)] == [3]
    assert not run.left_after(10)
    assert not _ray_dir(run.run_id).exists()  # type: ignore[arg-type]

    assert_each_step_counts_once(run)
    assert_new_weights_answered(run)
    assert_the_weights_changed(starter_dir, run)
    assert_its_numbers_are_kept(run)
    verified = subprocess.run(
        openforge(run.project, "verify", run.run_id), cwd=run.project, capture_output=True, text=True, timeout=300
    )
    assert verified.returncode == 0, verified.stderr
    assert "not verifiable" not in verified.stderr  # every weights that sampled were saved


def assert_each_step_counts_once(run: RealRun) -> None:
    assert run.sql("SELECT count(*) - count(DISTINCT rollout_id) FROM trained") == [(0,)]
    assert run.sql("SELECT step, weight_version FROM trained GROUP BY ALL ORDER BY step") == [
        *[(1, "1"), (2, "2.1"), (3, "3.2")]  # made by the first start, the second, …
    ]
    groups = run.sql("""
        SELECT step, count(t.rollout_id), count(r.reward), count(*)
        FROM rollouts r LEFT JOIN (SELECT rollout_id FROM trained) t USING (rollout_id)
        WHERE group_id IN (SELECT group_id FROM rollouts WHERE rollout_id IN (SELECT rollout_id FROM trained))
        GROUP BY step, group_id ORDER BY step""")
    assert [step for step, *_ in groups] == [step for step in range(1, STEPS + 1) for _ in range(GROUPS)]
    for _, trained, graded, asked in groups:
        assert (trained, asked) == (graded, SIZE)  # only an error shrinks a group
    told = run.sql("SELECT step FROM metrics WHERE name = 'train.reward' ORDER BY step")
    assert told == [(step,) for step in range(1, STEPS + 1)]
    assert dict(run.sql("SELECT state, count(*) FROM rollouts GROUP BY state"))["done"] >= STEPS * GROUPS * SIZE
    assert run.sql("SELECT state FROM runs") == [("done",)]


def assert_new_weights_answered(run: RealRun) -> None:
    """Every call of a step was answered by what the step before it had made."""
    sql = """
        SELECT DISTINCT r.step, c.weight_version_min, c.weight_version_max
        FROM calls c JOIN rollouts r USING (rollout_id, attempt) JOIN trained USING (rollout_id)
        WHERE c.state = 'done' ORDER BY r.step"""
    assert run.sql(sql) == [(1, "0", "0"), (2, "1", "1"), (3, "2.1", "2.1")]
    [(last,)] = run.sql("""
        SELECT DISTINCT weight_version_max FROM calls JOIN rollouts r USING (rollout_id) WHERE purpose = 'eval'
        AND r.step = 3 AND calls.state = 'done'""")
    assert step_of(last) == STEPS


def assert_the_weights_changed(before: Path, run: RealRun) -> None:
    from safetensors.torch import load_file

    checkpoint = last_checkpoint(run.run_dir / "trainer")
    assert checkpoint is not None
    assert checkpoint.name == f"global_step_{STEPS}"
    first, last = (load_file(folder / "model.safetensors") for folder in (before, weights_of(checkpoint)))
    assert {name: value.shape for name, value in first.items()} == {name: value.shape for name, value in last.items()}
    assert all(value.isfinite().all() for value in last.values())
    changed = [name for name, value in first.items() if not value.equal(last[name])]
    assert len(changed) > len(first) / 2


def assert_its_numbers_are_kept(run: RealRun) -> None:
    evaluated = run.sql("SELECT step, value FROM metrics WHERE name = 'eval.n' ORDER BY step")
    assert evaluated == [(0, len(EVALUATED)), (STEPS, len(EVALUATED))]
    assert list((run.run_dir / "trainer" / "tensorboard").rglob("events.out.tfevents.*"))
