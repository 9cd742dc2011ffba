"""From trees to training rows: what trains, exactly once, and what is refused."""

import math
from array import array
from typing import Any

import pytest

from openforge.tokens.breaks import Break
from openforge.tokens.samples import build_samples

NAN, INF = math.nan, math.inf


def trained(samples: list[Any]) -> list[int]:
    return [i for sample in samples for i, on in zip(sample.token_ids, sample.loss_mask, strict=True) if on]


def test_t22_t26_m19_the_mask_is_1_on_sampled_ids_only(talk: Any, say: Any) -> None:
    first = talk.ask([say.system("s"), say.user("u")], ids=[901, 902, 2], versions=((0, "v1"), (2, "v2")))
    second = talk.ask(talk.after(first, say.tool("t"), say.user("reminder")), ids=[903, 2])
    (sample,), refused = build_samples(talk.graph, vocab_size=1000)
    assert not refused
    assert sample.token_ids == first.input_ids + first.answer_ids + second.input_ids + second.answer_ids
    expected = bytes(len(first.input_ids)) + b"\1" * 3 + bytes(len(second.input_ids)) + b"\1" * 2
    assert sample.loss_mask == expected
    assert [value for value, on in zip(sample.logprobs, expected, strict=True) if on] == [-0.5] * 5
    assert all(math.isnan(value) for value, on in zip(sample.logprobs, expected, strict=True) if not on)
    start = len(first.input_ids)
    assert sample.versions == ((start, "v1"), (start + 2, "v2"))
    assert (sample.call_ids, sample.is_main, sample.weight, sample.reason) == (("c1", "c2"), True, 1.0, "root")


def test_t10_two_answers_to_one_prompt_are_two_samples(talk: Any, say: Any) -> None:
    prompt = [say.user("p")]
    talk.ask(prompt, ids=[3], input_ids=array("i", [1, 2]))
    talk.ask(prompt, ids=[4], input_ids=array("i", [1, 2]))
    samples, _ = build_samples(talk.graph, vocab_size=5)
    assert [sample.token_ids.tolist() for sample in samples] == [[1, 2, 3], [1, 2, 4]]
    assert [sample.weight for sample in samples] == [0.5, 0.5]
    assert [(sample.is_main, sample.reason) for sample in samples] == [(False, "retry"), (True, "retry")]


def test_m13_a_sampled_node_on_several_paths_trains_in_the_main_row_only(talk: Any, say: Any) -> None:
    a = talk.ask([say.user("u")], ids=[501, 502])
    talk.ask(talk.after(a, say.user("b")), ids=[503])
    talk.ask(talk.after(a, say.user("c")), ids=[504, 505])
    samples, _ = build_samples(talk.graph, vocab_size=None)
    assert [sample.is_main for sample in samples] == [False, True]
    assert trained(samples) == [503, 501, 502, 504, 505]
    assert samples[0].reason == Break.BRANCH
    shared = len(a.input_ids)
    assert samples[0].logprobs[shared : shared + 2].tolist() == [-0.5, -0.5]  # known, but trained elsewhere


def test_m14_m16_r13_a_rollout_weighs_1_and_a_fork_changes_no_tokens_share(talk: Any, say: Any) -> None:
    for text in "abcd":
        talk.ask([say.user(text)], ids=[7] * (ord(text) - 96))
    samples, _ = build_samples(talk.graph, vocab_size=None)
    assert sum(sample.weight for sample in samples) == pytest.approx(1, abs=1e-12)
    assert [sample.weight for sample in samples] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_the_main_row_is_the_longest_sampled_path_and_the_latest_of_equals(talk: Any, say: Any) -> None:
    for text, ids in (("a", [1, 2, 3]), ("b", [4, 5, 6]), ("c", [7])):
        talk.ask([say.user(text)], ids=ids)
    samples, _ = build_samples(talk.graph, vocab_size=None)
    assert [(sample.call_ids, sample.is_main) for sample in samples] == [
        (("c1",), False),
        (("c3",), False),
        (("c2",), True),
    ]


def test_a_rolled_back_turn_is_a_row_of_its_own_and_the_rewritten_text_is_not_trained(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], "a1", ids=[501])
    second = talk.ask(talk.after(first, say.tool("t")), "a2", ids=[502])
    third = talk.ask([*talk.after(first, say.tool("t")), say.answer("A2"), say.user("v")], "a3", ids=[503])
    samples, _ = build_samples(talk.graph, vocab_size=None)
    assert [sample.call_ids[-1] for sample in samples] == [second.call_id, third.call_id]
    assert [sample.reason for sample in samples] == [Break.ROLLBACK, Break.ROOT]
    assert trained(samples) == [502, 501, 503]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"ids": [5, 6, 7], "logprobs": [-0.1, -0.2]}, "logprob_len_mismatch"),
        ({"ids": [5, 6], "logprobs": [-0.1, -0.2, -0.3]}, "logprob_len_mismatch"),
        ({"ids": [5, 6], "logprobs": [0.0, 0.0]}, "bad_logprob"),
        ({"ids": [5, 6], "logprobs": [-0.1, NAN]}, "bad_logprob"),
        ({"ids": [5, 6], "logprobs": [-0.1, -INF]}, "bad_logprob"),
        ({"ids": [5, 6], "logprobs": [-0.1, INF]}, "bad_logprob"),
        ({"ids": [5, 6], "logprobs": [-0.1, 0.5]}, "bad_logprob"),
        ({"ids": [5, 6], "logprobs": [-0.1, -9999.0]}, "bad_logprob"),
        ({"ids": [5, -1]}, "token_out_of_vocab"),
        ({"ids": [5, 2000]}, "token_out_of_vocab"),
        ({"ids": [5], "input_ids": array("i", [-1, 1])}, "token_out_of_vocab"),
        ({"ids": [5], "input_ids": array("i", [2000])}, "token_out_of_vocab"),
        ({"ids": []}, "no_sampled_tokens"),
    ],
)
def test_t07_t08_t13_t34_r02_a_row_that_cannot_be_exact_is_refused(talk: Any, say: Any, call: Any, reason: str) -> None:
    talk.ask([say.user("bad")], **call)
    good = talk.ask([say.user("good")], ids=[9])
    samples, refused = build_samples(talk.graph, vocab_size=2000)
    assert refused == [(("c1",), reason)]
    assert [sample.call_ids for sample in samples] == [(good.call_id,)]
    assert samples[0].weight == 1.0


def test_t11_t35_an_empty_prompt_is_refused(talk: Any, say: Any) -> None:
    match = talk.match([say.user("u")])
    for call_id in ("c1", "c2"):
        talk.graph.commit(
            match,
            call_id=call_id,
            input_ids=array("i"),
            answer=say.answer("a"),
            answer_ids=array("i", [1]),
            logprobs=array("f", [-1.0]),
        )
    samples, refused = build_samples(talk.graph, vocab_size=None)
    assert not samples
    assert refused == [(("c1",), "empty_prompt_ids"), (("c2",), "empty_prompt_ids")]


def test_t17_half_a_bundle_does_not_leak_into_another_turn(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], ids=[501])
    match = talk.match(talk.after(first, say.user("v")))
    talk.graph.commit(
        match,
        call_id="half",
        input_ids=array("i", [1]),
        answer=say.answer("x"),
        answer_ids=array("i", [502]),
        logprobs=None,
    )
    assert build_samples(talk.graph, vocab_size=None) == ([], [(("c1", "half"), "logprobs_missing")])


def test_r08_without_logprobs_the_column_is_absent_never_zero(talk: Any, say: Any) -> None:
    match = talk.match([say.user("u")])
    talk.graph.commit(
        match,
        call_id="c",
        input_ids=array("i", [1]),
        answer=say.answer("x"),
        answer_ids=array("i", [2]),
        logprobs=None,
    )
    (sample,), refused = build_samples(talk.graph, vocab_size=None)
    assert (sample.logprobs, sample.versions, refused) == (None, (), [])


def test_a_refused_main_path_leaves_the_shared_answer_to_another_row(talk: Any, say: Any) -> None:
    a = talk.ask([say.user("u")], ids=[501])
    talk.ask(talk.after(a, say.user("long")), ids=[502] * 9, logprobs=[0.1] * 9)
    talk.ask(talk.after(a, say.user("short")), ids=[503])
    samples, refused = build_samples(talk.graph, vocab_size=None)
    assert refused == [(("c1", "c2"), "bad_logprob")]
    assert trained(samples) == [501, 503]
    assert [sample.is_main for sample in samples] == [True]


@pytest.mark.parametrize("n", [1, 15])
def test_a_short_answer_of_a_peaked_policy_may_have_logprob_exactly_0(talk: Any, say: Any, n: int) -> None:
    first = talk.ask([say.user("u")], ids=[5, 6])
    talk.ask(talk.after(first, say.user("v")), ids=[7] * n, logprobs=[-0.0] * n)
    assert len(build_samples(talk.graph, vocab_size=None)[0]) == 1


def test_t13_a_long_answer_of_zeros_was_made_up_also_beside_good_ones(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], ids=[5, 6])
    talk.ask(talk.after(first, say.user("v")), ids=[7] * 16, logprobs=[0.0] * 16)
    assert build_samples(talk.graph, vocab_size=None)[1] == [(("c1", "c2"), "bad_logprob")]


def test_rounding_just_above_0_is_no_fault(talk: Any, say: Any) -> None:
    talk.ask([say.user("u")], ids=[5, 6], logprobs=[1e-6, -3.0])
    assert len(build_samples(talk.graph, vocab_size=None)[0]) == 1


def test_m11_auxiliary_calls_train_nothing(talk: Any, say: Any) -> None:
    talk.ask([say.system("title"), say.user("u")], ids=[401], auxiliary=True)
    main = talk.ask([say.user("u")], ids=[402])
    talk.ask(talk.after(main, say.user("summary?")), ids=[403] * 9, auxiliary=True)
    samples, refused = build_samples(talk.graph, vocab_size=None)
    assert (trained(samples), refused) == ([402], [])
    assert samples[0].call_ids == (main.call_id,)


def test_a_call_that_continues_an_auxiliary_one_has_its_ids_but_does_not_train_them(talk: Any, say: Any) -> None:
    side = talk.ask([say.user("u")], ids=[401], auxiliary=True)
    talk.ask(talk.after(side, say.user("v")), ids=[402])
    (sample,), _ = build_samples(talk.graph, vocab_size=None)
    assert 401 in sample.token_ids
    assert trained([sample]) == [402]


def test_an_empty_answer_at_the_end_of_a_trained_path_is_no_fault(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], ids=[501])
    talk.ask(talk.after(first, say.user("v")), ids=[])
    (sample,), refused = build_samples(talk.graph, vocab_size=None)
    assert (trained([sample]), refused) == ([501], [])


def test_a_branch_whose_only_sampled_ids_train_elsewhere_is_no_row(talk: Any, say: Any) -> None:
    first = talk.ask([say.user("u")], ids=[501])
    talk.ask(talk.after(first, say.user("v")), ids=[502])
    talk.ask(talk.after(first, say.user("w")), ids=[])
    samples, refused = build_samples(talk.graph, vocab_size=None)
    assert trained(samples) == [501, 502]
    assert refused == [(("c1", "c3"), "no_sampled_tokens")]


def test_s13_a_rollout_without_calls_has_no_rows(talk: Any) -> None:
    assert build_samples(talk.graph, vocab_size=10) == ([], [])


@pytest.mark.parametrize("vocab_size", [None, 8])
def test_the_last_id_of_the_vocabulary_is_in_it(talk: Any, say: Any, vocab_size: int | None) -> None:
    talk.ask([say.user("u")], ids=[0, 7], input_ids=array("i", [7, 0]))
    assert len(build_samples(talk.graph, vocab_size=vocab_size)[0]) == 1
