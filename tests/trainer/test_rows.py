import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.rows import RowError, attention_reach, make_row

SLIDING = {"num_hidden_layers": 2, "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}


def sample(ids: list[int], mask: list[int], **changed: Any) -> dict[str, Any]:
    """As the orchestrator tells it: a logprob of -i/8 where place i was sampled, null elsewhere."""
    logprobs = [-place / 8 if flag else None for place, flag in enumerate(mask)]
    told = {"sample_id": "r.0", "token_ids": ids, "loss_mask": mask, "logprobs": logprobs, "versions": [[0, "3"]]}
    return {**told, **changed}


def reason(told: dict[str, Any], reach: int | None = None, max_length: int = 100) -> str:
    with pytest.raises(RowError) as caught:
        make_row(told, reach=reach, max_length=max_length)
    return caught.value.reason


def test_t22_the_response_begins_at_the_first_sampled_id_and_is_masked_where_nobody_sampled() -> None:
    row = make_row(sample([5, 6, 7, 8, 9, 10], [0, 0, 1, 0, 0, 1]), reach=None, max_length=6)
    assert (row.prompt, row.response, row.mask) == ([5, 6], [7, 8, 9, 10], [1, 0, 0, 1])


def test_r14_a_masked_logprob_is_zero_and_a_sampled_one_is_the_recorded_one() -> None:
    row = make_row(sample([5, 6, 7, 8, 9], [0, 1, 0, 0, 1]), reach=None, max_length=5)
    assert row.logprobs == [-1 / 8, 0.0, 0.0, -4 / 8]


def test_m19_what_follows_the_last_sampled_id_is_no_part_of_the_row() -> None:
    told = sample([5, 6, 7, 8, 9], [0, 1, 1, 0, 0])
    row = make_row(told, reach=None, max_length=3)  # nor of its length
    assert (row.prompt, row.response) == ([5], [6, 7])


def test_a04_only_weights_that_sampled_trained_ids_make_a_row_old() -> None:
    told = sample([5, 6, 7, 8, 9], [0, 0, 0, 1, 1], versions=[[1, "3"], [3, "5"], [4, "6"]])
    row = make_row(told, reach=None, max_length=5)
    assert (row.oldest, row.newest) == (5, 6)  # ids of weights 3 are trained in another row
    assert reason({**told, "versions": [[4, "6"]]}) == "version_missing"


def test_r02_a_sample_without_sampled_ids_is_refused() -> None:
    assert reason(sample([5, 6], [0, 0])) == "no_sampled_tokens"
    assert reason(sample([], [])) == "no_sampled_tokens"


def test_t11_a_sample_without_a_prompt_is_refused() -> None:
    assert reason(sample([5, 6], [1, 1])) == "empty_prompt_ids"


def test_r08_a_sample_without_logprobs_is_refused_and_nothing_is_filled_in() -> None:
    assert reason(sample([5, 6, 7], [0, 1, 1], logprobs=None)) == "logprobs_missing"
    assert reason(sample([5, 6, 7], [0, 1, 1], logprobs=[None, -0.5, None])) == "logprobs_missing"


@pytest.mark.parametrize("logprobs", [[None, -0.1], [None, -0.1, -0.2, -0.3]])
def test_t07_t08_lengths_that_differ_are_refused_and_nothing_is_padded(logprobs: list[float | None]) -> None:
    assert reason(sample([5, 6, 7], [0, 1, 1], logprobs=logprobs)) == "lengths"
    assert reason(sample([5, 6, 7, 8], [0, 1, 1])) == "lengths"


@pytest.mark.parametrize("versions", [None, [], [[0, None]], [[0, ""]], [[0, "3"], [2, None]]])
def test_a01_a_sample_that_does_not_say_its_weights_is_refused(versions: list[Any] | None) -> None:
    assert reason(sample([5, 6, 7], [0, 1, 1], versions=versions)) == "version_missing"


def test_a01_weights_that_are_no_step_of_a_training_are_refused() -> None:
    assert reason(sample([5, 6, 7], [0, 1, 1], versions=[[0, "starter"]])) == "version_unknown"


def test_a02_a_row_knows_its_oldest_and_its_newest_weights() -> None:
    row = make_row(sample([5, 6, 7], [0, 1, 1], versions=[[0, "9"], [1, "7.1"], [2, "10"]]), reach=None, max_length=3)
    assert (row.oldest, row.newest) == (7, 10)


def test_r04_a_long_row_is_refused_never_cut() -> None:
    told = sample(list(range(10)), [0] * 5 + [1] * 5)
    assert make_row(told, reach=None, max_length=10).prompt == [0, 1, 2, 3, 4]
    assert reason(told, max_length=9) == "too_long"


@given(st.data())
def test_r04_leaving_out_what_no_trained_id_can_see_keeps_every_trained_id(data: st.DataObject) -> None:
    mask = [0, *data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=40)), 1]
    reach = data.draw(st.integers(0, 45))
    told = sample([100 + place for place in range(len(mask))], mask)
    whole, cut = (make_row(told, reach=r, max_length=len(mask)) for r in (None, reach))
    assert (cut.response, cut.mask, cut.logprobs) == (whole.response, whole.mask, whole.logprobs)
    assert cut.prompt == whole.prompt[-(reach + 1) :]
    trained = [i for i, flag in zip(cut.response, cut.mask, strict=True) if flag]
    assert trained == [i for i, flag in zip(told["token_ids"], mask, strict=True) if flag]


def test_a_model_whose_layers_all_slide_reaches_its_windows_in_a_row() -> None:
    assert attention_reach(SLIDING) == 14
    kinds = {**SLIDING, "max_window_layers": 2, "layer_types": ["sliding_attention"] * 2}
    assert attention_reach(kinds) == 14


@pytest.mark.parametrize(
    "changed",
    [
        {"use_sliding_window": False},
        {"sliding_window": None},
        {"max_window_layers": 1},
        {"layer_types": ["sliding_attention", "full_attention"]},
    ],
)
def test_one_layer_that_sees_everything_reaches_everything(changed: dict[str, Any]) -> None:
    assert attention_reach({**SLIDING, **changed}) is None
    assert attention_reach({"num_hidden_layers": 2}) is None


def test_a_row_cut_to_the_reach_has_the_logprobs_of_the_whole_and_one_id_less_has_not() -> None:
    torch = pytest.importorskip("torch", reason="the train set is not installed")
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 96, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads | rope, **SLIDING, initializer_range=0.3)).eval()
    reach = attention_reach(model.config.to_dict())
    assert reach == 14
    ids = torch.randint(64, (90,)).tolist()
    told = sample(ids, [0] * 60 + [1] * 10 + [0] * 10 + [1] * 10)

    def logprobs(seen: int | None) -> Any:
        row = make_row(told, reach=seen, max_length=90)
        with torch.no_grad():
            logits = model(torch.tensor([row.prompt + row.response])).logits[0].log_softmax(-1)
        places = [len(row.prompt) + place for place, flag in enumerate(row.mask) if flag]
        return torch.stack([logits[place - 1, (row.prompt + row.response)[place]] for place in places])

    whole = logprobs(None)
    assert torch.allclose(logprobs(reach), whole, atol=1e-4)
    assert len(make_row(told, reach=reach, max_length=90).prompt) == reach + 1
    assert not torch.allclose(logprobs(reach - 1), whole, atol=1e-6)  # the reach is exact, not generous
    assert all(math.isfinite(value) for value in whole.tolist())
