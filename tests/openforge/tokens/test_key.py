"""Which rewritings of a history are the same history, and which are not."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openforge.tokens.key import KEY_BYTES, canonical_arguments, extend, message_key, root_key
from openforge.tokens.message import Message, Tool, ToolCall

CALL = ToolCall("call_1a", "bash", '{"cmd": "ls é", "n": 1.0, "deep": {"b": [1, 2], "a": null}}')
ANSWER = Message("assistant", "Text", reasoning="hm", tool_calls=(CALL,))
texts = st.text(max_size=30)
roles = st.sampled_from(["system", "user", "tool"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def same(a: Message, b: Message) -> bool:
    return message_key(a) == message_key(b)


def with_arguments(arguments: str) -> Message:
    return replace(ANSWER, tool_calls=(replace(CALL, arguments=arguments),))


@pytest.mark.parametrize(
    "echo",
    [
        replace(ANSWER, reasoning=""),
        replace(ANSWER, text="  Text\n"),
        replace(ANSWER, tool_calls=(replace(CALL, id="call1a"),)),
        with_arguments('{"deep":{"a":null,"b":[1,2]},"n":1,"cmd":"ls \\u00e9"}'),
        with_arguments(' {"cmd": "ls é", "n": 1e0, "deep": {"b": [1.0, 2], "a": null}} '),
    ],
    ids=["no-reasoning", "padded", "id-without-underscore", "reordered-and-escaped", "other-numbers"],
)
def test_m20_what_harnesses_do_to_an_answer_leaves_it_the_same(echo: Message) -> None:
    assert same(ANSWER, echo)


@pytest.mark.parametrize(
    "other",
    [
        replace(ANSWER, text="Texts"),
        replace(ANSWER, tool_calls=()),
        replace(ANSWER, tool_calls=(CALL, CALL)),
        replace(ANSWER, tool_calls=(replace(CALL, id="call_2"),)),
        replace(ANSWER, tool_calls=(replace(CALL, name="sh"),)),
        with_arguments('{"cmd": "ls é", "n": true, "deep": {"b": [1, 2], "a": null}}'),
        with_arguments('{"cmd": "ls é", "n": 1.0, "deep": {"b": [2, 1], "a": null}}'),
        with_arguments('{"cmd": "ls é", "n": 1.0, "deep": {"b": [1, 2], "a": null}'),
        replace(ANSWER, role="user"),
    ],
)
def test_what_changes_the_meaning_of_an_answer_is_another_message(other: Message) -> None:
    assert not same(ANSWER, other)


def test_m20_ids_made_anew_match_only_when_asked_for() -> None:
    renamed = replace(ANSWER, tool_calls=(replace(CALL, id="call_9"),))
    result = Message("tool", "out", tool_call_id="call_1a")
    assert not same(ANSWER, renamed)
    assert message_key(ANSWER, compare_ids=False) == message_key(renamed, compare_ids=False)
    assert not same(result, replace(result, tool_call_id="call_9"))
    assert message_key(result, compare_ids=False) == message_key(replace(result, tool_call_id=""), compare_ids=False)


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_m26_what_was_said_to_the_policy_is_compared_exactly(role: str) -> None:
    message = Message(role, "a b")  # type: ignore[arg-type]
    for text in ("a b ", " a b", "a  b", "A b", "a\u00a0b", "a b\n"):
        assert not same(message, replace(message, text=text))


@given(roles, texts, roles, texts)
def test_two_messages_share_a_key_only_when_they_are_equal(role: str, text: str, role2: str, text2: str) -> None:
    a, b = Message(role, text), Message(role2, text2)  # type: ignore[arg-type]
    assert same(a, b) == (a == b)


@given(texts, texts, texts, texts)
@example("a", "bc", "ab", "c")
@example("a\0", "b", "a", "\0b")
def test_no_text_can_be_mistaken_for_two_parts(text: str, name: str, text2: str, name2: str) -> None:
    a = Message("assistant", text, tool_calls=(ToolCall("i", name, "{}"),))
    b = Message("assistant", text2, tool_calls=(ToolCall("i", name2, "{}"),))
    assert same(a, b) == ((text.strip(), name) == (text2.strip(), name2))


@given(json_values)
def test_arguments_survive_any_spacing_key_order_and_escaping(value: object) -> None:
    def shuffled(x: object) -> object:
        if isinstance(x, dict):
            return {key: shuffled(x[key]) for key in reversed(x)}
        return [shuffled(item) for item in x] if isinstance(x, list) else x

    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    loose = json.dumps(shuffled(value), indent=1, ensure_ascii=True)
    assert canonical_arguments(compact) == canonical_arguments(loose)


@given(json_values, json_values)
def test_arguments_that_a_javascript_harness_could_not_have_made_equal_are_different(a: object, b: object) -> None:
    def floats(x: object) -> object:
        if isinstance(x, int | float) and not isinstance(x, bool):
            return float(x)
        if isinstance(x, dict):
            return {k: floats(v) for k, v in x.items()}
        return [floats(v) for v in x] if isinstance(x, list) else (x, type(x).__name__)

    equal = canonical_arguments(json.dumps(a)) == canonical_arguments(json.dumps(b))
    assert equal == (floats(a) == floats(b))


def test_integers_beyond_float64_are_rounded_as_javascript_does() -> None:
    assert canonical_arguments("9007199254740993") == canonical_arguments("9007199254740992")
    assert canonical_arguments("-0") == canonical_arguments("0")
    assert canonical_arguments("123456789012345678901234567890") == canonical_arguments("1.2345678901234568e+29")


@pytest.mark.parametrize("broken", ['{"a": ', "not json", "[" * 100_000, "{'a': 1}", "NaN", '"\ud800"', '"\\ud800"'])
def test_what_cannot_be_parsed_is_compared_as_stripped_text(broken: str) -> None:
    assert same(with_arguments(broken), with_arguments(f"  {broken}\n"))
    assert not same(with_arguments(broken), with_arguments(broken + "x"))


def test_arguments_nested_deeper_than_json_writers_go_are_compared_as_text() -> None:
    deep = "[" * 500 + "]" * 500
    assert canonical_arguments(f" {deep}") == deep


def test_no_arguments_are_an_empty_object() -> None:
    assert same(with_arguments(""), with_arguments("{}"))


def test_other_tools_are_another_root() -> None:
    tool = Tool("bash", "runs", {"type": "object", "properties": {"a": {}, "b": {}}})
    reordered = Tool("bash", "runs", {"properties": {"b": {}, "a": {}}, "type": "object"})
    assert root_key([tool]) == root_key([reordered])
    others = [
        [],
        [tool, tool],
        [replace(tool, name="sh")],
        [replace(tool, description="")],
        [replace(tool, parameters={})],
    ]
    assert len({root_key(tools) for tools in [[tool], *others]}) == 6


def test_a_schema_that_no_json_writer_takes_still_has_a_root() -> None:
    odd = Tool("bash", "\ud800", {"maximum": 2**70})
    assert len(root_key([odd])) == KEY_BYTES
    assert root_key([odd]) != root_key([replace(odd, parameters={"maximum": 2**71})])


def test_the_chain_depends_on_every_message_and_their_order() -> None:
    a, b = message_key(Message("user", "a")), message_key(Message("user", "b"))
    assert len({extend(extend(b"", a), b), extend(extend(b"", b), a), extend(b"", a), extend(b"", b)}) == 4
