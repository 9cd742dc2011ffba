"""Where a training step's time goes, and what exactness costs against veRL's own tool agent loop.

`./just bench training --run RUN --store FOLDER` prints the first of a training run that is there.

`./just bench training` measures the second, without training: one trainer on this machine evaluates in rounds, each
round the same tasks from the same start files once in `react` through the recorder and once in veRL's ToolAgentLoop
with a shell tool (verl_loop.py, room.py), one after the other, the order by turns, the first round not counted. Policy,
vLLM, sampling, concurrency, sandbox and grading are the same. Then the recorded answers are held against two other ways
to come by the next prompt (history.py). About five minutes on two cores.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.arms import comparison, history_lines, our_arm, their_arm
from benchmarks.room import NAME, ROLLOUTS, write_register
from benchmarks.step_time import print_step_time
from openforge.config import load
from openforge.config.models import Config
from openforge.errors import OpenForgeError
from openforge.ids import new_run_id
from openforge.store.connect import query
from openforge.task import load_tasks
from openforge_tui.policies import resolve_policy
from openforge_tui.train import Stop, Training, train, write_plans
from trainer.evaluation import FIRST_SEED

HARNESS = "react"
_ROLLOUTS = """
SELECT r.task, r.seed, r.state, r.reward, s.states, c.seconds AS model_s, c.calls, c.tokens
FROM rollouts r
JOIN (SELECT run_id, rollout_id, attempt, map_from_entries(list((state, ts))) AS states
      FROM raw.rollout_state GROUP BY ALL) s USING (run_id, rollout_id, attempt)
LEFT JOIN (SELECT run_id, rollout_id, attempt, sum(duration_s) AS seconds, count(*) AS calls,
                  sum(len(completion_ids)) AS tokens FROM calls GROUP BY ALL) c USING (run_id, rollout_id, attempt)
WHERE r.purpose = 'eval'"""
_FIRST_PROMPTS = """
SELECT DISTINCT task, prompt_ids FROM calls JOIN rollouts USING (run_id, rollout_id, attempt)
WHERE parent_call_id IS NULL"""


def rounds_of_groups(tasks: Sequence[str], rounds: int, samples: int) -> list[dict[str, Any]]:
    """The evaluation plan: a round before those that count, in each both loops, which begins by turns."""
    groups: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        seeds = [FIRST_SEED + number * samples + sample for sample in range(samples)]
        shared = [{"task": task, "seed": seed, "purpose": "eval"} for seed in seeds for task in tasks]
        arms = [[{**group, "harness": HARNESS} for group in shared]]
        arms.append([{**group, "harness": NAME, "agent": NAME} for group in shared])
        groups += [group for arm in (arms if number % 2 else arms[::-1]) for group in arm]
    return groups


def verl_keys(config: Config, batch: int, loops: Path, tools: Path) -> dict[str, Any]:
    """veRL's own keys for [trainer.verl]: evaluate only, one loop's share of a round at a time, react's limits."""
    rollout = "actor_rollout_ref.rollout"
    return {
        "trainer.val_only": True,
        "data.val_batch_size": batch,
        "data.apply_chat_template_kwargs": template_settings(config),
        f"{rollout}.agent.agent_loop_config_path": str(loops),
        f"{rollout}.multi_turn.tool_config_path": str(tools),
        f"{rollout}.multi_turn.format": "hermes",
        f"{rollout}.multi_turn.max_assistant_turns": config.run.max_calls,
        f"{rollout}.multi_turn.max_parallel_calls": 16,
        f"{rollout}.multi_turn.max_tool_response_length": 1 << 20,  # the tool has cut it as react does
    }


def template_settings(config: Config) -> dict[str, bool]:
    """What the policy's chat template is told here; a setting that is not made is left to the template."""
    told = config.policy.enable_thinking
    return {} if told is None else {"enable_thinking": told}


def prepare(config: Config, store_root: Path, rounds: int, samples: int) -> Training:
    """A training run that evaluates the plan and ends, with all that its trainer reads written down."""
    known = load_tasks(config.run.tasks)
    tasks = [task.ref for task in known if not task.skills]  # veRL's loop is not told of any
    if left_out := [task.ref for task in known if task.skills]:
        _say(f"left out: {', '.join(left_out)}, with skills")
    draft = Training(config, store_root, resolve_policy(config.policy.model), new_run_id(), Path.cwd())
    folder = draft.run_dir / "peer"
    folder.mkdir(parents=True)
    keys = verl_keys(config, len(tasks) * samples, *write_register(folder, config))
    changed = config.model_copy(update={"trainer": config.trainer.model_copy(update={"verl": keys})})
    training = Training(changed, store_root, draft.model_dir, draft.run_id, draft.project)
    write_plans(training)
    lines = [orjson.dumps(group) for group in rounds_of_groups(tasks, rounds, samples)]
    training.place().eval_plan.write_bytes(b"\n".join(lines) + b"\n")
    return training


async def histories(training: Training) -> Counter[str]:
    """What comes of every recorded conversation of the run; see history.py."""
    from transformers import AutoTokenizer

    from benchmarks.history import VerlHistory, conversations

    model = training.model_dir
    kind = json.loads((model / "config.json").read_bytes())["model_type"]
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    verl = VerlHistory(tokenizer, kind, template_settings(training.config))
    found: Counter[str] = Counter()
    for conversation in conversations(training.store_root, training.run_id, HARNESS):
        found += await verl.compare(conversation)
        found["conversations"] += 1
    return found


async def compare(training: Training, samples: int) -> None:
    """Roll out and print."""
    await train(training, _say, lambda event: _say(f"trainer: {event['event']} {event.get('what', '')}"), Stop())
    lines = (training.run_dir / "peer" / ROLLOUTS).read_bytes().splitlines()
    rows, store, runs = [orjson.loads(line) for line in lines], training.store_root, [training.run_id]
    ours = our_arm(query(store, _ROLLOUTS, runs=runs), samples)
    theirs = their_arm(rows, samples)
    for error, count in Counter(row["error"] for row in rows if row["error"]).items():
        _say(f"veRL's loop, {count} void: {error}")
    first = {row["task"]: row["prompt_ids"] for row in query(store, _FIRST_PROMPTS, runs=runs)}
    asked = [row for row in rows if not row["error"]]
    other = sum(row["prompt_ids"] != first.get(row["task"]) for row in asked)
    found = await histories(training)
    print("\n".join([*comparison(ours, theirs), *history_lines(found, len(asked), other)]), flush=True)


def _say(text: str) -> None:
    print(text.rstrip(), file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", help="a training run of the store: print where its steps' time went")
    parser.add_argument("--store", type=Path, help="the store's folder; kept, where it is given")
    parser.add_argument("--policy", default="starter")
    parser.add_argument("--recipe", default="tiny-cpu")
    parser.add_argument("--rounds", type=int, default=4, help="rounds that count")
    parser.add_argument("--samples", type=int, default=2, help="rollouts of a task in a round, with each loop")
    asked = parser.parse_args()
    try:
        if asked.run:
            print_step_time((asked.store or Path(".openforge")).resolve(), asked.run)
            return 0
        typed = {"trainer.recipe": asked.recipe, "policy.model": asked.policy, "run.harnesses": HARNESS}
        config = load(Path.cwd(), overrides=typed).config
        with tempfile.TemporaryDirectory(prefix="openforge-bench-") as made:
            training = prepare(config, (asked.store or Path(made)).resolve(), asked.rounds, asked.samples)
            _say(f"run {training.run_id} in {training.store_root}")
            asyncio.run(compare(training, asked.samples))
    except OpenForgeError as error:
        _say(f"{error.summary}\n{error.hint}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
