"""Where calls belong in the tree: each rule one test."""

import gc
import tracemalloc
from array import array
from dataclasses import replace
from typing import Any

import pytest

from openforge.tokens import key
from openforge.tokens.breaks import Break
from openforge.tokens.graph import Graph, prompt_ids, tail_ids
from openforge.tokens.key import root_key
from openforge.tokens.message import Message, Tool, ToolCall


def test_a_conversation_that_only_appends_is_one_path(talk: Any, say: Any) -> None:
    first = talk.ask([say.system("s"), say.user("u")])
    second = talk.ask(talk.after(first, say.tool("t1"), say.tool("t2")))
    third = talk.ask(talk.after(second, say.user("u2")))
    assert [turn.reason for turn in talk.graph.turns] == [Break.ROOT, Break.APPEND, Break.APPEND]
    assert talk.graph.paths() == [[first, second, third]]
    assert (second.parent, third.parent) == (first, second)
    assert third.input_ids == array("i", [*say.encode(say.user("u2")), say.GENERATE])


def test_m07_every_prompt_ends_with_the_generation_prompt(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")])
    second = talk.ask(talk.after(first, say.user("v")))
    for turn in (first, second):
        assert prompt_ids(turn.parent, turn.input_ids)[-1] == say.GENERATE


def test_m22_a_continued_prompt_is_the_sampled_ids_and_only_new_messages_are_rendered(talk: Any, say: Any) -> None:
    first = talk.ask([say.system("s"), say.user("u")], ids=[77, 78])
    talk.rendered = 0
    second = talk.ask(talk.after(first, say.tool("t")))
    prompt = prompt_ids(second.parent, second.input_ids)
    assert prompt == first.input_ids + first.answer_ids + array("i", [*say.encode(say.tool("t")), say.GENERATE])
    assert second.prompt_len == len(prompt)
    assert talk.rendered == 1


def test_t04_t23_t25_stored_ids_are_the_sampled_ones_whatever_the_text_says(talk: Any, say: Any) -> None:
    """Non-canonical splits, think blocks that a template would add or drop, a think block that the prompt ends with."""
    first = talk.ask([say.user("u")], Message("assistant", "ab", reasoning=""), ids=[248068, 198, 5])
    second = talk.ask(talk.after(first, say.user("v")))
    assert first.answer_ids == array("i", [248068, 198, 5])
    assert prompt_ids(second.parent, second.input_ids)[: len(first.input_ids) + 3].tolist()[-3:] == [248068, 198, 5]


def test_t10_identical_prompts_are_siblings(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("p")], "a")
    second = talk.ask([say.user("p")], "b")
    assert (first.parent, second.parent) == (None, None)
    assert second.reason is Break.RETRY
    assert talk.graph.leaves() == [first, second]
    assert second.input_ids == first.input_ids
    assert talk.ask(talk.after(first, say.user("x"))).parent is first


def test_a_retry_needs_no_rendering(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("p")], "a")
    talk.ask(talk.after(first, say.tool("t")))
    talk.rendered = 0
    again = talk.match(talk.after(first, say.tool("t")))
    assert (again.reason, again.parent, talk.rendered) == (Break.RETRY, first, 0)
    assert again.ready is talk.graph.turns[1].input_ids


def test_a_retry_with_a_call_id_spelt_otherwise_is_rendered_anew(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("p")], say.call(id="call_1"))
    talk.ask(talk.after(first, say.tool("t", "call_1")))
    match = talk.match(talk.after(first, say.tool("t", "call1")))
    assert (match.reason, match.parent, match.ready) == (Break.RETRY, first, None)


def test_the_same_words_with_other_tools_are_no_retry(talk: Any, say: Any) -> None:
    talk.ask([say.user("p")], tools=[Tool("a")])
    match = talk.match([say.user("p")], [Tool("b")])
    assert (match.reason, match.ready) == (Break.ROOT, None)


def test_t14_each_choice_of_a_call_with_several_is_a_sibling(talk: Any, say: Any) -> None:
    match = talk.match([say.user("p")])
    choices = [talk.ask([], text, match=match) for text in ("a", "b")]
    assert talk.graph.leaves() == choices
    assert talk.ask([say.user("p"), say.answer("a"), say.user("x")]).parent is choices[0]


def test_m08_a_retry_keeps_what_came_after_the_first_answer(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("p")], "r1")
    later = talk.ask(talk.after(first, say.user("x")), "r2")
    retry = talk.ask([say.user("p")], "r1'")
    assert talk.graph.paths() == [[first, later], [retry]]
    assert talk.ask(talk.after(later, say.user("y"))).parent is later


def test_m02_rewriting_the_last_answer_rolls_back_that_one_turn(talk: Any, say: Any) -> None:
    first = talk.ask([say.system("s"), say.user("u")], "a1")
    second = talk.ask(talk.after(first, say.tool("t")), "a2")
    history = talk.after(first, say.tool("t"), say.answer("A2"), say.user("v"))
    match = talk.match(history)
    assert match.reason is Break.ROLLBACK
    assert match.parent is first
    assert match.rollback == (second, say.answer("A2"), (say.user("v"),))
    assert match.new == (say.tool("t"), say.answer("A2"), say.user("v"))
    third = talk.ask(history, "a3", match=match)
    separator = [*say.encode(say.answer("A2")), *say.encode(say.user("v")), say.GENERATE]
    prompt = prompt_ids(third.parent, third.input_ids)
    assert prompt == prompt_ids(second.parent, second.input_ids) + array("i", separator)
    assert talk.graph.paths() == [[first, second], [first, third]]
    fourth = talk.ask([*history, say.answer("a3"), say.user("w")])
    assert (fourth.parent, fourth.reason) == (third, Break.APPEND)


def test_a_rolled_back_turn_can_be_rolled_back_again(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], "a1")
    talk.ask(talk.after(first, say.tool("t")), "a2")
    base = talk.after(first, say.tool("t"), say.answer("A2"), say.user("v"))
    third = talk.ask(base, "a3")
    match = talk.match([*base, say.answer("A3"), say.user("w")])
    assert (match.reason, match.parent, match.rollback and match.rollback.turn) == (Break.ROLLBACK, first, third)


def test_a_rollback_asked_twice_is_a_retry_with_its_ids_ready(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], "a1")
    talk.ask(talk.after(first, say.tool("t")), "a2")
    rewritten = talk.after(first, say.tool("t"), say.answer("A2"), say.user("v"))
    third = talk.ask(rewritten, "a3")
    match = talk.match(rewritten)
    assert (match.reason, match.parent, match.ready) == (Break.RETRY, first, third.input_ids)


def test_m17_rewriting_the_first_answer_is_a_new_root(talk: Any, say: Any) -> None:
    talk.ask([say.system("s"), say.user("u")], "a1")
    match = talk.match([say.system("s"), say.user("u"), say.answer("A1"), say.user("v")])
    assert (match.parent, match.reason, match.rollback) == (None, Break.HISTORY_REWRITE, None)
    assert len(match.new) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h: [replace(h[0], text="other"), *h[1:]], Break.SYSTEM_CHANGED),
        (lambda h: h[1:], Break.SYSTEM_CHANGED),
        (lambda h: [h[0], h[0], *h[1:]], Break.SYSTEM_CHANGED),
        (lambda h: [h[0], replace(h[1], text="other"), *h[2:]], Break.HISTORY_REWRITE),
        (lambda h: [*h[:3], replace(h[3], text="[old result removed]"), *h[4:]], Break.HISTORY_REWRITE),
        (lambda h: [*h[:2], replace(h[2], text="A1"), h[3], replace(h[4], text="A2"), *h[5:]], Break.HISTORY_REWRITE),
        (lambda h: [h[0], *h[3:]], Break.HISTORY_REWRITE),
        (lambda h: [*h, Message("assistant", "injected"), Message("user", "x")], Break.FOREIGN),
        (lambda h: [Message("user", "q"), Message("assistant", "few-shot"), Message("user", "x")], Break.NO_MATCH),
        (lambda h: [Message("user", "a summary of all this")], Break.ROOT),
        (lambda h: h[:5], Break.PREFILL),
        (lambda h: [*h, Message("assistant", "Sure, ")], Break.PREFILL),
    ],
)
def test_a_fork_says_what_the_harness_changed(talk: Any, say: Any, change: Any, reason: Break) -> None:
    first = talk.ask([say.system("s"), say.user("u")], "a1")
    second = talk.ask(talk.after(first, say.tool("t1")), "a2")
    match = talk.match(change(talk.after(second, say.tool("t2"))))
    assert (match.reason, match.parent, match.start) == (reason, None, 0)
    assert talk.ask([], match=match).reason is reason
    assert talk.graph.breaks == {Break.ROOT: 1, Break.APPEND: 1} | {reason: 1 + (reason is Break.ROOT)}


def test_other_tools_are_a_new_root_also_when_they_come_and_go(talk: Any, say: Any) -> None:
    a, b = [Tool("a")], [Tool("b")]
    first = talk.ask([say.user("u")], "a1", tools=a)
    second = talk.ask(talk.after(first, say.user("v")), "a2", tools=b)
    third = talk.ask(talk.after(first, say.user("v"), say.answer("a2"), say.user("w")), tools=b)
    fourth = talk.match(talk.after(first, say.user("v"), say.answer("a2"), say.user("w")), a)
    assert (second.parent, second.reason) == (None, Break.TOOLS_CHANGED)
    assert (third.parent, third.reason) == (second, Break.APPEND)
    assert fourth.reason is Break.TOOLS_CHANGED
    assert second.prompt_len == len(second.input_ids)


def test_t19_a_renderer_that_cannot_continue_forks_and_is_counted(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")])
    messages = talk.after(first, say.user("v"))
    match = talk.match(messages)
    forked = match.fork(Break.BRIDGE_REFUSED)
    assert (forked.parent, forked.new) == (None, tuple(messages))
    turn = talk.ask([], match=match, reason=Break.BRIDGE_REFUSED, input_ids=talk.render(messages))
    assert (turn.parent, turn.reason) == (None, Break.BRIDGE_REFUSED)
    assert turn.prompt_len == len(turn.input_ids)
    assert talk.graph.breaks[Break.BRIDGE_REFUSED] == 1
    assert talk.ask([*messages, say.answer("ok"), say.user("w")]).parent is turn


def test_m04_dropped_reasoning_keeps_the_path_because_its_ids_are_kept(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], say.answer("a", reasoning="long thoughts"), ids=[91, 92, 93])
    second = talk.ask([say.user("u"), say.answer("a"), say.user("v")])
    assert second.parent is first
    assert prompt_ids(second.parent, second.input_ids)[len(first.input_ids) :][:3].tolist() == [91, 92, 93]


def test_m05_answers_that_differ_only_in_reasoning_are_two_turns_told_apart_by_it(talk: Any, say: Any) -> None:
    one = talk.ask([say.user("u")], say.answer("a", reasoning="one"))
    two = talk.ask([say.user("u")], say.answer("a", reasoning="two"))
    assert talk.graph.leaves() == [one, two]
    assert talk.match([say.user("u"), say.answer("a", reasoning="one"), say.user("v")]).parent is one
    assert talk.match([say.user("u"), say.answer("a", reasoning="two"), say.user("v")]).parent is two


def test_m25_parallel_sub_agents_never_share_a_tip(talk: Any, say: Any) -> None:
    """Interleaved calls of a main agent and two sub-agents with the same task, that answer the same."""
    main = talk.ask([say.system("main"), say.user("u")], "split")
    agents = [talk.ask([say.system("sub"), say.user("task")], "looking") for _ in range(2)]
    seconds = [talk.match([say.system("sub"), say.user("task"), say.answer("looking"), say.tool(t)]) for t in "xy"]
    parents = [match.parent for match in seconds]  # both are in flight at once
    assert {parent.call_id for parent in parents if parent} == {agent.call_id for agent in agents}
    thirds = [talk.ask([], f"found {i}", match=match) for i, match in enumerate(seconds)]
    after = talk.ask(talk.after(main, say.tool("both are back")))
    assert after.parent is main
    assert [turn.reason for turn in thirds] == [Break.APPEND, Break.APPEND]
    assert len(talk.graph.turns) == 6
    assert sorted(map(len, talk.graph.paths())) == [2, 2, 2]


def test_a_second_continuation_of_an_answer_is_a_branch(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")])
    talk.ask(talk.after(first, say.user("title?")), auxiliary=True)
    main = talk.ask(talk.after(first, say.user("x")))
    other = talk.ask(talk.after(first, say.user("y")))
    assert (main.reason, other.reason, other.parent) == (Break.APPEND, Break.BRANCH, first)


def test_m20_histories_with_new_call_ids_match_when_ids_are_not_compared(make_talk: Any, say: Any) -> None:
    for compare_ids, reason in ((True, Break.HISTORY_REWRITE), (False, Break.APPEND)):
        talk = make_talk(compare_ids=compare_ids)
        talk.ask([say.user("u")], say.call(id="call_1", arguments='{"a": 1, "b": 2}'))
        echo = say.call(id="call_9", arguments='{"b":2,"a":1}')
        assert talk.match([say.user("u"), echo, say.tool("t", "call_9")]).reason is reason


def test_parallel_results_in_another_order_still_continue(talk: Any, say: Any) -> None:
    calls = (ToolCall("call_1", "bash", "{}"), ToolCall("call_2", "bash", "{}"))
    first = talk.ask([say.user("u")], say.answer(tool_calls=calls))
    assert talk.match(talk.after(first, say.tool("b", "call_2"), say.tool("a", "call_1"))).parent is first


def test_m19_a_reminder_after_a_tool_result_is_new_input(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")])
    new = (say.tool("t"), say.user("reminder"))
    assert talk.match(talk.after(first, *new)).new == new


def test_few_shot_messages_before_the_first_call_are_part_of_the_root(talk: Any, say: Any) -> None:
    shots = [say.user("q"), say.answer("example"), say.user("u")]
    first = talk.ask(shots)
    assert first.reason is Break.ROOT
    assert talk.ask(talk.after(first, say.user("v"))).parent is first


def test_a_prefill_as_the_first_call_is_named(talk: Any, say: Any) -> None:
    assert talk.match([say.user("u"), say.answer("Sure,")]).reason is Break.PREFILL


def test_a_call_is_committed_once(talk: Any, say: Any) -> None:
    match = talk.match([say.user("u")])
    turn = talk.ask([], match=match)
    with pytest.raises(ValueError, match="committed already"):
        talk.graph.commit(
            match,
            call_id=turn.call_id,
            input_ids=array("i", [1]),
            answer=say.answer(),
            answer_ids=array("i"),
            logprobs=None,
        )
    assert talk.graph.turns == [turn]


def test_the_tail_of_a_path_is_joined_from_as_many_turns_as_it_takes(talk: Any, say: Any) -> None:
    turn = talk.ask([say.user("u")])
    for i in range(4):
        turn = talk.ask(talk.after(turn, say.user(f"v{i}")))
    whole = prompt_ids(turn.parent, turn.input_ids) + turn.answer_ids
    for n in range(len(whole) + 3):
        assert tail_ids(turn, n) == (whole[-n:] if n else array("i"))


def test_a_long_conversation_does_not_recurse(talk: Any, say: Any) -> None:
    turn = talk.ask([say.user("u")])
    for _ in range(1500):
        turn = talk.ask([], match=talk.match([say.user("u")])._replace(parent=turn, new=(say.user("v"),)))
    assert turn.prompt_len == len(prompt_ids(turn.parent, turn.input_ids))
    assert len(talk.graph.paths()[0]) == 1501


def _live(turns: int, tokens: int) -> tuple[Graph, list[Message]]:
    """A conversation as the recorder sees it: every request parsed anew, so that no text object comes twice."""
    graph, root = Graph(), root_key([Tool("bash")])
    history: list[Message] = []
    new_ids = tokens // (turns + 1)
    for n in range(turns + 1):
        text = f"{n:08d}" * (new_ids // 2)  # 4 characters a token
        history.append(Message("tool" if n else "user", text, tool_call_id=f"call_{n}"))
        echoed = [Message(m.role, "".join(list(m.text)), "", m.tool_calls, m.tool_call_id) for m in history]
        answer = Message("assistant", f"step {n}", "", (ToolCall(f"call_{n + 1}", "bash", f'{{"cmd":  "ls {n}"}}'),))
        match = graph.match(root, echoed)
        assert n == 0 or match.reason is Break.APPEND
        call_id: Any = f"c{n}"
        sampled = new_ids // 10
        graph.commit(
            match,
            call_id=call_id,
            input_ids=array("i", list(range(new_ids - sampled))),
            answer=answer,
            answer_ids=array("i", list(range(sampled))),
            logprobs=array("f", bytes(4 * sampled)),
        )
        history.append(replace(answer, tool_calls=(ToolCall(f"call{n + 1}", "bash", f'{{"cmd":"ls {n}"}}'),)))
    return graph, history


@pytest.mark.parametrize("turns", [10, 50, 150])
def test_a_live_conversation_of_30000_tokens_costs_at_most_half_a_megabyte(turns: int) -> None:
    _live(2, 100)
    gc.collect()
    tracemalloc.start()
    graph, history = _live(turns, 30_000)
    wire = b"," * 170_000  # the recorder keeps the newest prompt as it goes over the wire
    del history
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(graph.turns) == turns + 1
    assert len(wire) < size <= 500_000


def test_matching_a_long_history_parses_only_new_arguments() -> None:
    graph, history = _live(100, 30_000)
    root = root_key([Tool("bash")])
    key._cached.cache_clear()
    for n in range(5):
        assert (
            graph.match(root, [*history, Message("tool", f"x{n}", tool_call_id="call_101")]).parent is graph.turns[-1]
        )
    assert key._cached.cache_info().misses == 101
