"""veRL's own classes over real sandboxes; only the model is scripted."""

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

torch = pytest.importorskip("torch", reason="the train set is not installed")

import hydra  # noqa: E402
import uvloop  # noqa: E402
from omegaconf import DictConfig, OmegaConf  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap  # noqa: E402
from verl.tools.tool_registry import load_all_tools  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from benchmarks.arms import their_arm  # noqa: E402
from benchmarks.history import Conversation, Turn, VerlHistory, without  # noqa: E402
from benchmarks.room import ROLLOUTS, first_messages, react  # noqa: E402
from benchmarks.training import prepare  # noqa: E402
from openforge.config import load  # noqa: E402
from openforge.task import load_tasks  # noqa: E402
from openforge_tui.train import Training  # noqa: E402
from trainer.check_config import check  # noqa: E402
from trainer.evaluation import FIRST_SEED  # noqa: E402
from trainer.verl_plugins.plan_dataset import PlanDataset  # noqa: E402

TASK = "desk/count-lines"
QWEN3 = {"enable_thinking": False}


def call(command: str) -> str:
    body = json.dumps({"name": "shell", "arguments": {"command": command}})
    return f"<tool_call>\n{body}\n</tool_call><|im_end|>"


@pytest.fixture
def training(tmp_path: Path) -> Training:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "qwen3", "architectures": ["M"], "num_hidden_layers": 2})
    )
    typed = {"trainer.recipe": "tiny-cpu", "policy.model": str(model), "policy.enable_thinking": "false"}
    config = load(tmp_path, overrides={**typed, "run.tasks": TASK, "run.harnesses": "react"}, env={}).config
    return prepare(config, tmp_path / "store", rounds=1, samples=1)


@pytest.fixture
def verl(training: Training) -> DictConfig:
    return check(training.overrides())


class Servers:
    """veRL's client, with answers that are written down."""

    def __init__(self, tokenizer: Any, answers: list[str]) -> None:
        self._tokenizer, self._answers = tokenizer, answers
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **asked: Any) -> TokenOutput:
        self.asked.append(asked)
        ids = self._tokenizer.encode(self._answers.pop(0), add_special_tokens=False)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"global_steps": 0})


def make_loop(verl: DictConfig, name: str, servers: Servers, tokenizer: Any) -> Any:
    """As veRL's worker makes one, from the register and the tools that its configuration names."""
    rollout = verl.actor_rollout_ref.rollout
    (entry,) = [each for each in OmegaConf.load(rollout.agent.agent_loop_config_path) if each.name == name]
    tools = load_all_tools(rollout.multi_turn.tool_config_path, None)
    return hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(verl),
        server_manager=servers,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type="qwen3",
        dataset_cls=PlanDataset,
        data_config=DictConfigWrap(verl.data),
        tools=ToolListWrap(tools),
    )


def test_verl_takes_the_keys_and_evaluates_one_loop_at_a_time(training: Training, verl: DictConfig) -> None:
    assert verl.trainer.val_only
    assert verl.trainer.val_before_train
    rows = PlanDataset(str(training.place().eval_plan))
    batch = verl.data.val_batch_size
    loops = [[rows[n]["agent_name"] for n in range(start, start + batch)] for start in range(0, len(rows), batch)]
    assert [set(names) for names in loops] == [{"verl"}, {"openforge"}, {"openforge"}, {"verl"}]
    assert type(make_loop(verl, "openforge", Servers(None, []), None)).__name__ == "HarnessLoop"


@pytest.mark.contract
def test_verls_loop_works_in_the_tasks_folder_and_is_graded_as_a_rollout_is(
    training: Training, verl: DictConfig, qwen3_dir: Path
) -> None:
    """On the event loop and in a thread as of Ray's workers, where subprocesses work in another way."""
    tokenizer = AutoTokenizer.from_pretrained(qwen3_dir)
    answers = [call("wc -l < notes.txt > answer.txt"), call("cat answer.txt"), "Done.<|im_end|>"]
    servers = Servers(tokenizer, answers)
    group = {"task": TASK, "seed": FIRST_SEED + 1, "harness": "verl", "purpose": "eval"}
    outputs: list[Any] = []

    async def run() -> None:
        loop = make_loop(verl, "verl", servers, tokenizer)
        outputs.extend(await loop.run({"temperature": 0.0}, extra_info=group, raw_prompt=[], uid="u", session_id=0))

    thread = threading.Thread(target=lambda: asyncio.run(run(), loop_factory=uvloop.new_event_loop))
    thread.start()
    thread.join()
    (output,) = outputs
    assert (output.reward_score, output.extra_fields["reward_extra_info"]) == (1.0, {"acc": 1.0})
    (rollout,) = their_arm([orjson.loads((training.run_dir / "peer" / ROLLOUTS).read_bytes())], 1).rollouts
    assert (rollout.calls, rollout.reward) == (3, 1.0)
    assert rollout.tokens == sum(
        len(tokenizer.encode(text, add_special_tokens=False))
        for text in (call("wc -l < notes.txt > answer.txt"), call("cat answer.txt"), "Done.<|im_end|>")
    )
    sampling = servers.asked[0]["sampling_params"]
    assert (sampling["temperature"], sampling["max_tokens"]) == (1.0, training.config.policy.sampling.max_tokens)
    assert not list((training.run_dir / "peer").glob("*.log"))
    told = tokenizer.decode(servers.asked[2]["prompt_ids"])
    assert "<tool_response>\n(no output)\n</tool_response>" in told


@pytest.fixture
def conversation(qwen3_dir: Path) -> SimpleNamespace:
    """Two turns as recorded: the second prompt is the first, the sampled ids, and what was appended."""
    tokenizer = AutoTokenizer.from_pretrained(qwen3_dir)
    (task,) = load_tasks([TASK])
    tools, first, sampled = [react()["TOOL"]], first_messages(task), call("ls")

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    template = {"tools": tools, "tokenize": False, "add_generation_prompt": True, **QWEN3}
    prompt = encode(tokenizer.apply_chat_template(first, **template))
    reply = "\n<|im_start|>user\n<tool_response>\na b\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    later = [*prompt, *encode(sampled), *encode(reply + "<think>\n\n</think>\n\n")]
    told = [("shell", {"command": "ls"})]
    turns = [Turn(prompt, encode(sampled), first, "", told)]
    turns.append(Turn(later, encode("Done.<|im_end|>"), [{"role": "tool", "content": "a b"}], "Done.", []))
    return SimpleNamespace(whole=Conversation(turns, tools), verl=VerlHistory(tokenizer, "qwen3", QWEN3))


async def test_verls_tokens_go_on_from_the_sampled_ids_and_a_history_that_is_rendered_anew_does_not(
    conversation: SimpleNamespace,
) -> None:
    found = await conversation.verl.compare(conversation.whole)
    assert (found["prompts"], found["verl"], found["rendered"]) == (2, 0, 1)
    assert found["beyond"] == 0  # the template drops an empty thought, and nothing else here
    assert (found["answers"], found["parsed"]) == (2, 0)


async def test_a_prompt_id_or_a_tool_call_that_differs_is_counted(conversation: SimpleNamespace) -> None:
    first, second = conversation.whole.turns
    changed = Turn([*second.prompt_ids[:-1], 0], second.completion_ids, second.added, "Done.", [("shell", {})])
    found = await conversation.verl.compare(Conversation([first, changed], conversation.whole.tools))
    assert (found["verl"], found["parsed"]) == (1, 1)


def test_a_part_is_left_out_wherever_it_stands() -> None:
    assert without([1, 2, 3, 1, 2, 1, 3, 1, 2], [1, 2]) == [3, 1, 3]
    assert without([1, 2], []) == [1, 2]


async def test_an_answer_that_its_template_writes_in_another_way_differs_beyond_empty_thoughts(
    conversation: SimpleNamespace, qwen3_dir: Path
) -> None:
    first, second = conversation.whole.turns
    odd = AutoTokenizer.from_pretrained(qwen3_dir).encode(call("ls").replace(": ", ":"), add_special_tokens=False)
    cut = len(first.prompt_ids)
    grown = [*first.prompt_ids, *odd, *second.prompt_ids[cut + len(first.completion_ids) :]]
    turns = [Turn(first.prompt_ids, odd, first.added, "", first.calls)]
    turns.append(Turn(grown, second.completion_ids, second.added, "Done.", second.calls))
    found = await conversation.verl.compare(Conversation(turns, conversation.whole.tools))
    assert (found["verl"], found["beyond"], found["parsed"]) == (0, 1, 0)
