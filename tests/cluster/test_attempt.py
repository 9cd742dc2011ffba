"""How one attempt ends, whose doing that was, and what its harness could see: one run of harnesses that misbehave.

All cases run together in one real run (sandboxes, recorder, verifier); each test looks at its own.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from model_server import ModelServer

from cluster.attempt import RolloutSpec, judge
from cluster.recorder import SealSummary
from cluster.rollout import Rollout
from cluster.runtimes.base import Exit
from cluster.states import AttemptError, ErrorClass
from openforge.harness import load_harness

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("isolated")]

BODY = '{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ASK = f"curl -s --noproxy '*' -m 10 $URL/chat/completions -H 'content-type: application/json' -d '{BODY}'\n"
SCRIPTS = {
    "wrong": ASK,
    "slow": ASK + "echo 42 > answer.txt; sleep 600",
    "silent": "echo 42 > answer.txt",
    "broken-model": ASK + "exit 1",
    "exit-4": ASK + "exit 4",
    "suicide": ASK + "kill -9 -1",
    "greedy": ASK * 5,
    "broken-verifier": ASK,
    "hog": ASK + "python3 -c \"import time; x = b'1' * (150 << 20); time.sleep(30)\" & sleep 30",
    "egress": ASK
    + "curl -s -m 5 https://example.com; curl -s -m 5 http://example.org/; curl --noproxy '*' http://1.1.1.1",
    "nosy": ASK
    + "env; ls -R /opt/openforge; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; find / -name '*.jsonl*'",
    "late": ASK + f"(setsid sh -c 'sleep 1; {ASK.strip()}' &) ; exit 0",
}


@dataclass(frozen=True)
class Seen:
    rollout: Rollout
    records: list[dict[str, Any]]
    log: str

    @property
    def outcome(self) -> tuple[str, str | None, float | None]:
        return str(self.rollout.state), self.rollout.result.error_class, self.rollout.reward

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


@pytest.fixture(scope="module")
def seen(isolated: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    return asyncio.run(_run(tmp_path_factory.mktemp("attempts")))


async def _run(root: Path) -> dict[str, Seen]:
    model = ModelServer()
    model.broken_for = "broken-model"
    await model.start()
    desk = Desk(root, model)
    good, bad = desk.task(), desk.task(test="exit 1\n", name="broken-verifier")
    specs = [
        RolloutSpec(bad if name == "broken-verifier" else good, desk.harness(script, name), 0, 0)
        for name, script in SCRIPTS.items()
    ]
    async with desk.orchestrator(time_limit_s=6.0, max_calls=3, sandbox={"memory": "100Mi"}) as orchestrator:
        rollouts = await orchestrator.run_all(specs)
    await model.stop()
    records = desk.records()
    return {
        rollout.spec.harness.name: Seen(
            rollout,
            [record for record in records if record["rollout_id"] == rollout.id],
            (desk.run_dir / "logs" / f"{rollout.id}.0.log").read_text(errors="replace"),
        )
        for rollout in rollouts
    }


def test_wrong_work_is_done_with_reward_0(seen: dict[str, Seen]) -> None:
    assert seen["wrong"].outcome == ("done", None, 0.0)


def test_d02_over_its_time_it_is_failed_but_graded_and_its_trace_is_kept(seen: dict[str, Seen]) -> None:
    assert seen["slow"].outcome == ("failed", "timeout_agent", 1.0)
    assert len(seen["slow"].kinds("call.close")) == 1


def test_s13_a_harness_that_makes_no_model_call_is_not_scored(seen: dict[str, Seen]) -> None:
    assert seen["silent"].outcome == ("error", "no_model_calls", None)
    assert seen["silent"].kinds("grade") == []


def test_s10_a_model_that_only_errs_is_not_scored(seen: dict[str, Seen]) -> None:
    assert seen["broken-model"].outcome == ("error", "policy", None)


def test_the_exit_code_of_the_harness_makes_it_failed(seen: dict[str, Seen]) -> None:
    assert seen["exit-4"].outcome == ("failed", "harness_exit", 0.0)
    assert seen["exit-4"].kinds("rollout.state")[-1]["exit_code"] == 4


def test_h04_an_agent_that_kills_everything_it_sees_kills_only_itself(seen: dict[str, Seen]) -> None:
    assert seen["suicide"].outcome == ("failed", "agent_killed", 0.0)


def test_memory_over_the_limit_is_the_agents_doing(seen: dict[str, Seen]) -> None:
    state, error_class, reward = seen["hog"].outcome
    assert (state, reward) == ("failed", 0.0)
    assert error_class in ("memory", "timeout_agent")  # refused at once, or counted: the hog sleeps on without it


def test_calls_over_the_limit_are_refused_and_the_rollout_is_failed(seen: dict[str, Seen]) -> None:
    assert seen["greedy"].outcome == ("failed", "limit", 0.0)
    assert len(seen["greedy"].kinds("call.close")) == 3
    assert {record["error_class"] for record in seen["greedy"].kinds("call.refused")} == {"limit_calls"}


def sealed(**counts: int) -> SealSummary:
    numbers = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "aborted": 0, "limited": 0, "refused_calls": 0}
    return SealSummary(**{**numbers, **counts}, samples=[], refused=[], breaks={})


def gave_up(summary: SealSummary) -> ErrorClass | None:
    return judge(Exit("exit", 1, "", 1.0), summary, load_harness("react"))[0]


def test_a_first_call_over_the_token_limit_is_the_limits_doing_not_the_policys() -> None:
    assert gave_up(sealed(aborted=1, limited=1)) == "limit"
    assert gave_up(sealed(calls=2, aborted=1, limited=1)) == "limit"
    for broken in (sealed(aborted=1), sealed(aborted=3, refused_calls=1), sealed(calls=2, aborted=1)):
        with pytest.raises(AttemptError) as caught:
            gave_up(broken)
        assert caught.value.error_class == "policy"


def test_h05_a_verifier_that_breaks_is_never_a_reward_of_0(seen: dict[str, Seen]) -> None:
    assert seen["broken-verifier"].outcome == ("error", "grader", None)


def test_what_leaves_the_sandbox_is_refused_and_journalled(seen: dict[str, Seen]) -> None:
    egress = {(record["host"], record["decision"]) for record in seen["egress"].kinds("egress")}
    assert egress == {("example.com", "refuse"), ("example.org", "refuse")}


def test_secrets_and_the_store_are_not_in_the_sandbox(seen: dict[str, Seen]) -> None:
    log = seen["nosy"].log
    assert "PATH=" in log  # it did look
    for secret in ("control_secret", ".jsonl", "toy", "nosy", "store"):  # nor any name that tells the task
        assert secret not in log, secret


def test_h08_nothing_of_the_harness_lives_to_call_after_the_seal(seen: dict[str, Seen]) -> None:
    assert seen["late"].outcome == ("done", None, 0.0)
    assert len(seen["late"].kinds("call.open")) == 1
    assert seen["late"].kinds("call.refused") == []


def test_every_rollout_says_which_harness_it_was(seen: dict[str, Seen]) -> None:
    for name, one in seen.items():
        first = one.kinds("rollout.state")[0]
        assert (first["harness"], first["harness_version"]) == (name, "1")
        assert first["harness_hash"] == one.rollout.spec.harness.content_hash()
