"""What harnesses do to a history between two calls, and whether the sampled ids are continued through it.

Each row is one habit seen in a real harness, or a guard. `append` means one path, one sample, no token encoded twice.
"""

import copy
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from recorder_desk import BASH, Desk

Json = dict[str, Any]
Change = Callable[[list[Json], Json, list[Json]], tuple[list[Json], Json, list[Json]]]

START = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
CALL = (
    '<think>\nhm\n</think>\n\n Text \n<tool_call>\n{"name":"bash",  "arguments": {"cmd": "ls", "n": 1.0}}\n</tool_call>'
)
SECOND = '\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "b"}}\n</tool_call>'
LONE = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>'


def same(before: list[Json], said: Json, after: list[Json]) -> tuple[list[Json], Json, list[Json]]:
    return before, said, after


def said_with(**changes: Any) -> Change:
    return lambda before, said, after: (before, {**said, **changes}, after)


def arguments(change: Callable[[str], str]) -> Change:
    def rewrite(before: list[Json], said: Json, after: list[Json]) -> tuple[list[Json], Json, list[Json]]:
        function = said["tool_calls"][0]["function"]
        function["arguments"] = change(function["arguments"])
        return before, said, after

    return rewrite


def plain_ids(before: list[Json], said: Json, after: list[Json]) -> tuple[list[Json], Json, list[Json]]:
    for call in said["tool_calls"]:
        call["id"] = call["id"][:4] + "_" + call["id"][4:]
    for result in after:
        result["tool_call_id"] = result["tool_call_id"][:4] + "_" + result["tool_call_id"][4:]
    return before, said, after


class Row(NamedTuple):
    name: str
    answer: str
    change: Change
    reason: str
    tools: list[Json] | None = None


ROWS = [
    Row("exact echo", CALL, same, "append"),
    Row("arguments compact", CALL, arguments(lambda s: json.dumps(json.loads(s), separators=(",", ":"))), "append"),
    Row("arguments re-ordered", CALL, arguments(lambda s: json.dumps(dict(reversed(json.loads(s).items())))), "append"),
    Row("1.0 became 1", CALL, arguments(lambda s: s.replace("1.0", "1")), "append"),
    Row("non-ascii escaped", CALL.replace("ls", "é"), arguments(lambda s: json.dumps(json.loads(s))), "append"),
    Row("reasoning dropped", CALL, said_with(reasoning_content=None), "append"),
    Row("text padded", CALL, lambda b, s, a: (b, {**s, "content": f"  {s['content']}\n"}, a), "append"),
    Row("null became empty", LONE, said_with(content=""), "append"),
    Row(
        "text as parts",
        CALL,
        lambda b, s, a: (b, {**s, "content": [{"type": "text", "text": s["content"]}]}, a),
        "append",
    ),
    Row(
        "user as parts with cache_control",
        CALL,
        lambda b, s, a: (
            [
                b[0],
                {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]},
            ],
            s,
            a,
        ),
        "append",
    ),
    Row("call ids with _", CALL, plain_ids, "append"),
    Row("system is developer", CALL, lambda b, s, a: ([{"role": "developer", "content": "s"}, b[1]], s, a), "append"),
    Row("text cut by length", "half an ans…", same, "append"),
    Row("cut inside think", "<think>\nhalf…", same, "append"),
    Row("cut inside a call", '<tool_call>\n{"name": "bash", "argu…', same, "append"),
    Row("broken call", "<tool_call>\n{bad}\n</tool_call>", same, "append"),
    Row("empty answer", "", same, "append"),
    Row("user instead of a result", CALL, lambda b, s, a: (b, s, [{"role": "user", "content": "stop"}]), "append"),
    Row("results swapped", CALL + SECOND, lambda b, s, a: (b, s, a[::-1]), "append"),
    Row("text edited", CALL, said_with(content="other"), "fork:history-rewrite"),
    Row("tools changed", CALL, same, "fork:tools-changed", [BASH, {"type": "function", "function": {"name": "x"}}]),
    Row(
        "system changed",
        CALL,
        lambda b, s, a: ([{"role": "system", "content": "s2"}, b[1]], s, a),
        "fork:system-changed",
    ),
    Row("prefill", CALL, lambda b, s, a: (b, s, []), "fork:prefill"),
    Row(
        "foreign assistant",
        CALL,
        lambda b, s, a: (b, s, [*a, {"role": "assistant", "content": "injected"}, {"role": "user", "content": "x"}]),
        "fork:foreign-assistant",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_harness_may_do_this_to_the_history(desk: Desk, row: Row) -> None:
    desk.engine.say(row.answer, "ok")
    first = await desk.chat(START)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"out {index}"}
        for index, call in enumerate(first["message"].get("tool_calls") or [])
    ]
    before, said, after = row.change(
        *copy.deepcopy((START, first["message"], results or [{"role": "user", "content": "next"}]))
    )
    await desk.chat([*before, said, *after], tools=row.tools or [BASH])
    closes = desk.records("call.close")
    assert closes[1]["break_reason"] == row.reason
    status = await desk.status()
    one, two = (request["prompt"] for request in desk.engine.requests)
    sampled = closes[0]["completion_ids"]
    if row.reason == "append":
        assert two[: len(one) + len(sampled)] == one + sampled
        assert (status["full_renders"], status["bridges"]) == (1, 1)
        assert len((await desk.seal())["samples"]) == 1
    else:
        assert status["full_renders"] == 2
        assert closes[1]["parent_call_id"] is None
    assert closes[1]["prompt_len"] == len(two)


async def test_w02_reasoning_comes_back_in_a_fork(desk: Desk) -> None:
    """A fork renders what the harness sent, reasoning included, when nothing sampled can be continued."""
    said = {"role": "assistant", "content": "x", "reasoning_content": "because", "tool_calls": []}
    await desk.chat([START[1], said, {"role": "user", "content": "more"}])
    [record] = desk.records("call.close")
    assert record["messages"][1]["reasoning"] == "because"


async def test_t10_m08_the_same_prompt_twice_gives_two_samples(desk: Desk) -> None:
    desk.engine.say("one", "two", "then")
    first = await desk.chat(START)
    second = await desk.chat(START)
    await desk.chat([*START, second["message"], {"role": "user", "content": "n"}])
    assert first["message"]["content"] == "one"
    reasons = [record["break_reason"] for record in desk.records("call.close")]
    assert reasons == ["root", "retry", "append"]
    sealed = await desk.seal()
    assert [sample["sampled"] for sample in sealed["samples"]] == [2, 4]
    assert sealed["breaks"]["retry"] == 1
    assert (await desk.status())["full_renders"] == 1


async def test_m02_a_rewritten_last_answer_rolls_back_one_turn(desk: Desk) -> None:
    desk.engine.say("one", "two", "three")
    messages = list(START)
    for text in ("a", "b"):
        messages += [(await desk.chat(messages))["message"], {"role": "user", "content": text}]
    messages[-2] = {"role": "assistant", "content": "rewritten"}
    await desk.chat(messages)
    third = desk.records("call.close")[2]
    assert third["break_reason"] == "rollback:last-assistant"
    _first, second, last = (request["prompt"] for request in desk.engine.requests)
    assert last[: len(second)] == second
    text = desk.parts.site._answering._renderer.tok.decode(last[len(second) :])  # type: ignore[union-attr]
    assert text == "rewritten<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    assert (await desk.status())["full_renders"] == 1


async def test_m11_a_title_call_is_recorded_and_not_trained(desk: Desk) -> None:
    title = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": "go"}]
    await desk.chat(title, tools=None)  # before the main conversation: told at the seal
    await desk.chat(START)
    await desk.chat(title, tools=None)
    await desk.chat([{"role": "user", "content": "quota"}], max_tokens=1)
    tagged = [record["auxiliary"] for record in desk.records("call.close")]
    assert tagged == [False, False, True, True]
    sealed = await desk.seal()
    assert len(sealed["samples"]) == 1
    assert [fault["reason"] for fault in sealed["refused"]] == ["auxiliary"]


async def test_m13_an_answer_with_two_continuations_trains_once(desk: Desk) -> None:
    desk.engine.say("a", "b", "c")
    said = (await desk.chat(START))["message"]
    await desk.chat([*START, said, {"role": "user", "content": "left"}])
    await desk.chat([*START, said, {"role": "user", "content": "right"}])
    await desk.seal()
    rows = desk.records("sample")
    assert sorted(sum(row["loss_mask"]) for row in rows) == [2, 4]
    assert sum(row["weight"] for row in rows) == pytest.approx(1)
    assert rows[-1]["is_main"]
