"""A made-up but valid run, written through the real journal: what the store's tests and benchmarks read."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from openforge.ids import CallId, RecorderId, RolloutId, RunId, rollout_id
from openforge.journal.writer import JournalWriter

VOCAB = 1000


@dataclass
class Truth:
    """What was written, kept in plain Python, for the views to be compared with."""

    run_id: RunId
    prompts: dict[str, list[int] | None] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    calls: dict[str, list[str]] = field(default_factory=dict)


class SyntheticRun:
    """Two writers as in a real run: the orchestrator's journal and the recorder's."""

    def __init__(
        self, store_root: Path, run: str = "r0000000aaa", *, rotate_bytes: int = 32 << 20, seed: int = 0
    ) -> None:
        self.store_root, self.run_id = store_root, RunId(run)
        self.run_dir = store_root / "runs" / run
        self.truth = Truth(self.run_id)
        self.random = random.Random(seed)
        self.orchestrator = JournalWriter(
            self.run_dir, RecorderId("orchestrator-a"), self.run_id, rotate_bytes=rotate_bytes
        )
        self.recorder = JournalWriter(self.run_dir, RecorderId("recorder-a"), self.run_id, rotate_bytes=rotate_bytes)
        self._counter = 0
        vocab = store_root / "vocab"
        vocab.mkdir(exist_ok=True)
        if not (vocab / "v1.jsonl").exists():
            lines = (json.dumps({"token_id": i, "text": f"t{i}"}) for i in range(VOCAB))
            (vocab / "v1.jsonl").write_text("\n".join(lines) + "\n")
        self.orchestrator.append(
            "run.start",
            config={"run": {"samples": 1}},
            tasks=["desk"],
            harnesses=["react"],
            samples=1,
            policy={"model": "starter"},
            version="0",
        )
        self.recorder.append("vocab", hash="v1")

    def state(self, rollout: RolloutId, state: str, attempt: int = 0, **fields: object) -> None:
        _, task, harness, sample = rollout.split(".")
        self.orchestrator.append(
            "rollout.state",
            rollout_id=rollout,
            attempt=attempt,
            state=state,
            task=task,
            harness=harness,
            sample=int(sample),
            **fields,
        )

    def new_call(self) -> CallId:
        self._counter += 1
        return CallId(f"c{self._counter:08d}")

    def call(
        self,
        rollout: RolloutId,
        parent: str | None = None,
        *,
        attempt: int = 0,
        added: int = 50,
        sampled: int = 30,
        ids: bool = True,
        position: int = 0,
        text: str = "hello",
        **fields: object,
    ) -> CallId:
        """One answered call; `parent` continues that call's path."""
        call_id, rng = self.new_call(), self.random
        input_ids = [rng.randrange(VOCAB) for _ in range(added)] if ids else None
        answer = [rng.randrange(VOCAB) for _ in range(sampled)] if ids else None
        before = self.truth.prompts.get(parent, []) if parent else []
        known = before is not None and (parent is None or parent in self.truth.answers)
        prompt = [*before, *(self.truth.answers[parent] if parent else []), *input_ids] if known and input_ids else None
        self.truth.prompts[call_id] = prompt
        if answer is not None:
            self.truth.answers[call_id] = answer
        self.truth.calls.setdefault(rollout, []).append(call_id)
        self.recorder.append(
            "call.open",
            rollout_id=rollout,
            attempt=attempt,
            call_id=call_id,
            dialect="chat",
            mode="train",
            stream=True,
            model="m",
        )
        record: dict[str, object] = {
            "call_id": call_id,
            "dialect": "chat",
            "mode": "train",
            "stream": True,
            "status": 200,
            "finish_reason": "stop",
            "parent_call_id": parent,
            "break_reason": "append" if parent else "root",
            "input_ids": input_ids,
            "completion_ids": answer,
            "prompt_len": len(prompt) if prompt is not None else None,
            "logprobs": [-rng.random() for _ in range(sampled)] if ids else None,
            "weight_version_min": "w1",
            "weight_version_max": "w1",
            "prompt_tokens": len(prompt or []),
            "completion_tokens": sampled,
            "duration_s": 0.5,
            "messages": [
                {"position": position, "role": "user", "text": text},
                {
                    "position": position + 1,
                    "role": "assistant",
                    "text": "ok",
                    "tool_calls": [{"id": "x1", "name": "shell", "arguments": '{"command": "ls"}'}],
                },
            ],
            "request": {"model": "m", "messages": [{"role": "user", "content": text}]},
            "response": {"id": call_id},
        }
        self.recorder.append("call.close", rollout_id=rollout, attempt=attempt, **{**record, **fields})  # type: ignore[arg-type]
        return call_id

    def sample(self, rollout: RolloutId, calls: list[str], *, attempt: int = 0, **fields: object) -> None:
        """The training row of a straight path of calls."""
        prompt, answer = self.truth.prompts[calls[-1]], self.truth.answers[calls[-1]]
        assert prompt is not None
        ids, mask = [*prompt, *answer], [0] * (len(prompt) + len(answer))
        for call in calls:
            at = len(self.truth.prompts[call] or [])
            mask[at : at + len(self.truth.answers[call])] = [1] * len(self.truth.answers[call])
        record: dict[str, object] = {
            "sample_id": f"{rollout}/{attempt}/0",
            "call_ids": calls,
            "token_ids": ids,
            "loss_mask": mask,
            "logprobs": [-0.5 if bit else None for bit in mask],
            "is_main": True,
            "weight": 1.0,
            "reason": "leaf",
        }
        self.recorder.append("sample", rollout_id=rollout, attempt=attempt, **{**record, **fields})  # type: ignore[arg-type]

    def rollout(
        self,
        task: str = "t",
        harness: str = "react",
        sample: int = 0,
        *,
        turns: int = 3,
        reward: float = 1.0,
        **call: object,
    ) -> RolloutId:
        """A whole rollout, from queued to done."""
        rollout = rollout_id(self.run_id, task, harness, sample)
        for state in ("queued", "starting", "running"):
            self.state(rollout, state)
        calls: list[str] = []
        for turn in range(turns):
            calls.append(self.call(rollout, calls[-1] if calls else None, position=2 * turn, **call))  # type: ignore[arg-type]
        self.sample(rollout, calls)
        self.state(rollout, "grading")
        self.orchestrator.append("grade", rollout_id=rollout, attempt=0, reward=reward, details={"tests": 1})
        self.truth.rewards[rollout] = reward
        self.state(rollout, "done", duration_s=2.0, exit_code=0)
        return rollout

    def end(self, state: str = "done") -> None:
        self.orchestrator.append("run.end", state=state)
        self.close()

    def close(self) -> None:
        self.orchestrator.close()
        self.recorder.close()

    def unread_call(
        self, rollout: RolloutId, items: list[dict[str, object]], answer: str = "I see", **fields: object
    ) -> CallId:
        """One that the recorder passed on without reading it, as it does with images in record mode."""
        said = {"position": len(items), "role": "assistant", "text": answer}
        body = [
            item if len(json.dumps(item)) <= 1024 else {"$blob": self.recorder.blob(json.dumps(item))} for item in items
        ]
        record: dict[str, object] = {"mode": "record", "break_reason": None, "messages": [said],
                                     "request": {"model": "m", "messages": body}}  # fmt: skip
        return self.call(rollout, ids=False, **{**record, **fields})  # type: ignore[arg-type]
