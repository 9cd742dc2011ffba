"""Random rollouts against an oracle that knows nothing of matching: who continues whom is decided by the test."""

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.ids import CallId
from openforge.tokens.breaks import Break
from openforge.tokens.graph import Graph, Turn, path, prompt_ids, tail_ids
from openforge.tokens.key import root_key
from openforge.tokens.message import Message, Tool
from openforge.tokens.samples import build_samples

ROOT = root_key([Tool("bash")])
GENERATE = [1]


@dataclass
class Node:
    """What the test knows of a call: its messages as sent, its whole prompt, its answer."""

    turn: Turn
    sent: list[Message]
    prompt: list[int]
    answer: Message
    answer_ids: list[int]
    parent: "Node | None"


@dataclass
class World:
    graph: Graph = field(default_factory=Graph)
    nodes: list[Node] = field(default_factory=list)

    def fresh(self, text: str) -> str:
        return f"{text}#{len(self.nodes)}"

    def call(
        self, sent: list[Message], parent: Node | None, kept: list[int], new: list[int], reasons: set[Break]
    ) -> None:
        """Send a call that must continue `parent`; `kept` is the part of the prompt after its answer that is reused."""
        match = self.graph.match(ROOT, sent)
        assert match.reason in reasons
        assert match.parent is (parent.turn if parent else None)
        n = len(self.nodes)
        answer, ids = (
            Message("assistant", f"answer {n}", reasoning="r" * (n % 3)),
            [10_000 + 10 * n + i for i in range(n % 3 + 1)],
        )
        added = array("i", kept + new)
        assert match.ready is None or match.ready == added
        turn = self.graph.commit(
            match,
            call_id=CallId(f"c{n}"),
            input_ids=added,
            answer=answer,
            answer_ids=array("i", ids),
            logprobs=array("f", [-0.25 - n] * len(ids)),
            versions=((0, f"v{n}"),),
        )
        prompt = (parent.prompt + parent.answer_ids if parent else []) + kept + new
        self.nodes.append(Node(turn, sent, prompt, answer, ids, parent))


def ids_of(messages: list[Message]) -> list[int]:
    return [100 + ord(c) % 900 for message in messages for c in message.role[0] + message.text] + GENERATE


def echo(message: Message, how: int) -> Message:
    """What harnesses do to an answer on the way back."""
    return [message, Message("assistant", f" {message.text}\n"), Message("assistant", message.text, reasoning="other")][
        how
    ]


def step(world: World, data: Any) -> None:
    kinds = ["root", "append", "retry", "rewrite"] if world.nodes else ["root"]
    kind = data.draw(st.sampled_from(kinds))
    new = [
        Message(data.draw(st.sampled_from(["user", "tool"])), world.fresh("m"))
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    if kind == "root":
        sent = [Message("system", data.draw(st.sampled_from("xy"))), *new]
        world.call(sent, None, [], ids_of(sent), {Break.ROOT})
        return
    node = data.draw(st.sampled_from(world.nodes))
    if kind == "append":
        sent = [*node.sent, echo(node.answer, data.draw(st.integers(0, 2))), *new]
        world.call(sent, node, [], ids_of(new), {Break.APPEND, Break.BRANCH})
    elif kind == "retry":
        world.call(list(node.sent), node.parent, list(node.turn.input_ids), [], {Break.RETRY})
    else:
        rewritten = Message("assistant", world.fresh("rewritten"))
        sent = [*node.sent, rewritten, *new]
        if node.parent is None:
            world.call(sent, None, [], ids_of(sent), {Break.HISTORY_REWRITE})
        else:
            world.call(sent, node.parent, list(node.turn.input_ids), ids_of([rewritten, *new]), {Break.ROLLBACK})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_tree_of_conversations_is_kept_exactly_and_each_sampled_token_trains_once(data: Any) -> None:
    world = World()
    for _ in range(data.draw(st.integers(1, 14))):
        step(world, data)
    graph = world.graph
    for node in world.nodes:
        prompt = prompt_ids(node.turn.parent, node.turn.input_ids)
        assert prompt.tolist() == node.prompt
        assert node.turn.prompt_len == len(prompt)
        n = data.draw(st.integers(1, 40))
        assert tail_ids(node.turn, n).tolist() == (node.prompt + node.answer_ids)[-n:]
    assert sum(graph.breaks.values()) == len(world.nodes)
    assert {turn for turns in graph.paths() for turn in turns} == {node.turn for node in world.nodes}

    samples, refused = build_samples(graph, vocab_size=100_000)
    assert not refused
    assert len(samples) == len(graph.leaves())
    by_id = {str(node.turn.call_id): node for node in world.nodes}
    seen: list[int] = []
    for sample in samples:
        leaf = by_id[sample.call_ids[-1]]
        assert sample.token_ids.tolist() == leaf.prompt + leaf.answer_ids
        assert [by_id[call_id].turn for call_id in sample.call_ids] == path(leaf.turn)
        assert sample.logprobs is not None
        assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs)
        for token, on, logprob in zip(sample.token_ids, sample.loss_mask, sample.logprobs, strict=True):
            assert (token >= 10_000) == (not math.isnan(logprob))
            if on:
                seen.append(token)
                assert logprob == -0.25 - (token - 10_000) // 10
    assert sorted(seen) == sorted(token for node in world.nodes for token in node.answer_ids)
    assert math.isclose(sum(sample.weight for sample in samples), 1.0, abs_tol=1e-9)
    assert [sample.is_main for sample in samples] == [False] * (len(samples) - 1) + [True]
    sampled = {
        sample.sample_id: sum(len(by_id[call_id].answer_ids) for call_id in sample.call_ids) for sample in samples
    }
    assert sampled[samples[-1].sample_id] == max(sampled.values())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_row_is_refused_for_any_single_fault_and_the_rest_still_trains_once(data: Any) -> None:
    world = World()
    for _ in range(data.draw(st.integers(1, 10))):
        step(world, data)
    node = data.draw(st.sampled_from(world.nodes))
    assert node.turn.logprobs is not None
    fault = data.draw(st.sampled_from(["nan", "positive", "short", "id"]))
    if fault == "short":
        node.turn.logprobs.pop()
    elif fault == "id":
        node.turn.answer_ids[0] = -1
    else:
        node.turn.logprobs[0] = math.nan if fault == "nan" else 0.5
    samples, refused = build_samples(world.graph, vocab_size=100_000)
    bad = node.turn.call_id
    assert refused
    assert all(bad in row.call_ids for row in refused)
    assert all(bad not in sample.call_ids for sample in samples)
    seen = [t for sample in samples for t, on in zip(sample.token_ids, sample.loss_mask, strict=True) if on]
    assert len(seen) == len(set(seen))
    assert not samples or math.isclose(sum(sample.weight for sample in samples), 1.0, abs_tol=1e-9)
